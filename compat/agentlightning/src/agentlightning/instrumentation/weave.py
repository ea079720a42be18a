"""In the original, Weave's server within the process; see ``_refused``."""

from agentlightning._names import rest

__getattr__ = rest(__name__)
