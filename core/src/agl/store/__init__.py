"""The store: its contract (``base``), its ``rules``, and one implementation (``sqlite``).

``memory`` is that one without a file; ``forwarding`` and ``threaded`` stand before another store.
"""

from agl.store.base import LightningStore as LightningStore
