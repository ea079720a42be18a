"""In the original the rules of its store; see ``_refused``."""

from agentlightning._names import rest

__getattr__ = rest(__name__)
