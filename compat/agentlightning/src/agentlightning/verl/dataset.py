"""In the original, its dataset for verl; see ``_refused``."""

from agentlightning._names import rest

__getattr__ = rest(__name__)
