"""In the original the store over collections; see ``_refused``."""

from agentlightning._names import rest

__getattr__ = rest(__name__)
