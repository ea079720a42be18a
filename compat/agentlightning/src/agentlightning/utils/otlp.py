"""In the original both ends of OTLP; see ``_refused``."""

from agentlightning._names import rest

__getattr__ = rest(__name__)
