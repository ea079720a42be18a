"""The public names; each is imported when it is first used."""

from .apo import APO as APO
from .gepa import GEPA as GEPA
from .session import Result as Result
from .templates import render as render

__version__: str
