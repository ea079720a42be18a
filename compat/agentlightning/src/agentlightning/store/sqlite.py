"""The store in a file; the original's module of this name is empty."""

from agentlightning._names import rest
from agl import (
    SqliteLightningStore as SqliteLightningStore,
)

__getattr__ = rest(__name__)
