"""The names; each is imported when it is first used."""

from .interface import (
    VERL as VERL,
)
