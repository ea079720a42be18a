"""The names; each is imported when it is first used."""

from .base import (
    LightningStore as LightningStore,
    LightningStoreCapabilities as LightningStoreCapabilities,
    LightningStoreStatistics as LightningStoreStatistics,
)
from .client_server import (
    LightningStoreClient as LightningStoreClient,
    LightningStoreServer as LightningStoreServer,
)
from .memory import (
    InMemoryLightningStore as InMemoryLightningStore,
)
from .threading import (
    LightningStoreThreaded as LightningStoreThreaded,
)
