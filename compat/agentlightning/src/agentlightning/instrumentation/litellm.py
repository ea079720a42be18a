"""In the original, patches of LiteLLM; see ``_refused``."""

from agentlightning._names import rest

__getattr__ = rest(__name__)
