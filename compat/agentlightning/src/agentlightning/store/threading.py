"""A store behind a lock."""

from agentlightning._names import rest
from agl import (
    LightningStoreThreaded as LightningStoreThreaded,
)

__getattr__ = rest(__name__)
