"""The public names; each is imported when it is first used."""

from .algorithm import VERL as VERL

__version__: str
