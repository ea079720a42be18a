"""The store: its contract (``base``), its ``rules``, and the store in memory.

``memory`` is that one without a file; ``forwarding`` stands before another store.
"""

from agl.store.base import LightningStore as LightningStore
