from .store import PostgresLightningStore as PostgresLightningStore
