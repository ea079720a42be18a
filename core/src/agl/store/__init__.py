"""The store: contract (``base``), ``rules``, ``engine``, one in ``memory``, and ``forwarding``."""

from agl.store.base import LightningStore as LightningStore
