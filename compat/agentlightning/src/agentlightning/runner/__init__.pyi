"""The names; each is imported when it is first used."""

from .agent import (
    LitAgentRunner as LitAgentRunner,
)
from .base import (
    Runner as Runner,
)
from .legacy import (
    LegacyAgentRunner as LegacyAgentRunner,
)
