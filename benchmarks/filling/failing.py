"""Why attempts of a filled store fail, and what is stored of it."""

import random
from typing import Final

from agl.types import Failure
from agl.types.records import AttemptStatus, Boundary

_TRACEBACK = """Traceback (most recent call last):
  File "/home/me/shop/agent.py", line {line}, in {function}
    {code}
{type}: {message}"""


def _error(
    boundary: Boundary, type_: str, message: str, line: int, function: str, code: str
) -> Failure:
    values = {"line": line, "function": function, "code": code, "message": message}
    traceback = _TRACEBACK.format(type=type_, **values)
    return Failure(boundary=boundary, type=type_, message=message,
                   traceback=traceback)  # fmt: skip


CAUSES: Final[tuple[tuple[float, AttemptStatus, Failure], ...]] = (
    (4.0, "failed", _error("agent", "KeyError", "'fruit'", 41, "clerk", 'task["fruit"]')),
    (3.0, "failed", _error("agent", "ValueError", "invalid literal for int() with base 10: 'ten'",
                           63, "read_number", "int(text)")),
    (2.0, "failed", _error("model", "openai.APIConnectionError", "Connection error.", 52, "ask",
                           "await client.chat.completions.create(")),
    (1.0, "failed", _error("evaluator", "ZeroDivisionError", "division by zero", 88, "grade",
                           "right / total")),
    (2.0, "timeout", Failure(boundary="timeout", type="TimeoutError",
                             message="not done after 300 s (timeout_seconds)")),
    (1.0, "unresponsive", Failure(boundary="lost", type="unresponsive",
                                  message="no sign of life for 60 s (unresponsive_seconds)")),
)  # fmt: skip
"""Weight, status of the attempt, what is said of it."""
LOST: Final = CAUSES[-1][2]
"""The attempt that a second one follows."""


def cause(draw: random.Random) -> tuple[AttemptStatus, Failure]:
    """One of them."""
    (found,) = draw.choices(CAUSES, [weight for weight, _, _ in CAUSES])
    return found[1], found[2]
