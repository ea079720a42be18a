"""The names; each is imported when it is first used."""

from .apo import (
    APO as APO,
)
