"""What an agent uses."""

from agentlightning._names import rest
from agl.types import (
    LLM as LLM,
    NamedResources as NamedResources,
    PromptTemplate as PromptTemplate,
    ProxyLLM as ProxyLLM,
    Resource as Resource,
    ResourcesUpdate as ResourcesUpdate,
    ResourceUnion as ResourceUnion,
)

__getattr__ = rest(__name__)
