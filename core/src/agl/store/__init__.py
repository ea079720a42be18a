"""The store: its contract (``base``), ``rules``, an ``engine``, and one in ``memory``.

``forwarding`` stands before another store.
"""

from agl.store.base import LightningStore as LightningStore
