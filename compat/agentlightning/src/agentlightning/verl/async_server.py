"""In the original, its patched server of vLLM; see ``_refused``."""

from agentlightning._names import rest

__getattr__ = rest(__name__)
