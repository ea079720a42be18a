"""In the original collections under its stores; see ``_refused``."""

from agentlightning._names import rest

__getattr__ = rest(__name__)
