from .store import SqliteLightningStore as SqliteLightningStore
