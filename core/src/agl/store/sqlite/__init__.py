"""The store in an SQLite file."""

from agl.store.sqlite.store import SqliteLightningStore as SqliteLightningStore
