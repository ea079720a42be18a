"""The names; each is imported when it is first used."""

from .apo import (
    APO as APO,
)
from .base import (
    Algorithm as Algorithm,
)
from .decorator import (
    algo as algo,
)
from .fast import (
    Baseline as Baseline,
    FastAlgorithm as FastAlgorithm,
)
from .verl import (
    VERL as VERL,
)
