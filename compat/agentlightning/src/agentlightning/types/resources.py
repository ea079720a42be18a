"""What an agent uses."""

from agl.types import (
    LLM as LLM,
    NamedResources as NamedResources,
    PromptTemplate as PromptTemplate,
    ProxyLLM as ProxyLLM,
    Resource as Resource,
    ResourcesUpdate as ResourcesUpdate,
    ResourceUnion as ResourceUnion,
)
