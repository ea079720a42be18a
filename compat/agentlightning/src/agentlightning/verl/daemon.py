"""In the original, what ran rollouts for verl; see ``_refused``."""

from agentlightning._names import rest

__getattr__ = rest(__name__)
