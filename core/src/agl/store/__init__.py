"""The store: its contract (``base``), its ``rules``, and two implementations."""

from agl.store.base import LightningStore as LightningStore
