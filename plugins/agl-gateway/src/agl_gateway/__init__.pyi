"""The public names; each is imported when it is first used."""

from .proxy import LLMProxy as LLMProxy

__version__: str
