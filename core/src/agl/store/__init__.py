"""The store: its contract (``base``), its ``rules``, and one implementation (``sqlite``).

``memory`` is that one without a file; ``forwarding`` stands before another store.
"""

from agl.store.base import LightningStore as LightningStore
