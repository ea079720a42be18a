"""The public names; each is imported when it is first used."""

from .client import LightningStoreClient as LightningStoreClient
from .processes import ClientServerExecutionStrategy as ClientServerExecutionStrategy
from .server import LightningStoreServer as LightningStoreServer

__version__: str
