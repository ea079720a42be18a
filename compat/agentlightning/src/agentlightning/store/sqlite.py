"""The store in a file; the original's module of this name is empty."""

from agl import SqliteLightningStore as SqliteLightningStore
