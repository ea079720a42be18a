"""In the original a strategy without an ``execute``; see ``_refused``."""

from agentlightning._names import rest

__getattr__ = rest(__name__)
