"""In the original, its trainer of verl 0.5; see ``_refused``."""

from agentlightning._names import rest

__getattr__ = rest(__name__)
