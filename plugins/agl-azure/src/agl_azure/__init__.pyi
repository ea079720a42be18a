"""The public names; each is imported when it is first used."""

from .algorithm import AzureSFT as AzureSFT

__version__: str
