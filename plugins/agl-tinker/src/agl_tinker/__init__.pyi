"""The public names; each is imported when it is first used."""

from .algorithm import Tinker as Tinker

__version__: str
