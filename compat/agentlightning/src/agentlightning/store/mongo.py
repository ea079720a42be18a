"""In the original the store in MongoDB; see ``_refused``."""

from agentlightning._names import rest

__getattr__ = rest(__name__)
