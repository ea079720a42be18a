"""Rollouts that succeeded without a recorded model call, while others beside them had some.

A call is recorded where its address says. An agent that makes this address global (an environment
variable, a default client) sends there what all rollouts of its process call at that time: some
end without a call, and others have theirs. An agent may make no call, too: it is a warning.
"""

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from agl.algorithm.gateway import is_gateway_span
from agl.semconv import ModelCallAttributes as Key
from agl.types import Attempt, Span

logger = logging.getLogger(__name__)

MAX_CALL_CHARACTERS = 8_000
"""So much is kept of a call's request from its begin, and as much from its end."""
MAX_KNOWN = 500
"""A rollout is compared with so many that ended before it."""


@dataclass(frozen=True)
class Call:
    """A recorded model call."""

    request: str
    """Begin and end of its messages, as recorded."""
    call_id: str
    """The span that recorded it."""


@dataclass(frozen=True)
class Ran:
    """A rollout that succeeded, and the model calls that were recorded in it."""

    rollout_id: str
    process: str
    begin: float
    end: float
    calls: tuple[Call, ...]


def ran(rollout_id: str, attempt: Attempt, spans: Sequence[Span]) -> Ran | None:
    """What the spans of the attempt that counts say; None without a runner's name or an end."""
    if attempt.worker_id is None or attempt.end_time is None:
        return None
    calls = tuple(
        Call(_ends(str(span.attributes.get(Key.INPUT_MESSAGES, ""))), span.span_id)
        for span in spans
        if is_gateway_span(span)  # a client's own, as of AgentOps, is where the agent ran
    )
    process = attempt.worker_id.rpartition("-")[0]  # see ``agl.utils.life_cycle.worker_name``
    return Ran(rollout_id, process, attempt.start_time, attempt.end_time, calls)


class MixingCheck:
    """Warns, once, of rollouts without a call beside others that have some."""

    def __init__(self) -> None:
        self._has_warned = False
        self._known: deque[Ran] = deque(maxlen=MAX_KNOWN)

    def look(self, rollouts: Iterable[Ran | None]) -> None:
        """Look at rollouts that have ended, and at those that may have run beside them."""
        if self._has_warned:
            return
        # That there are calls is all that is asked of those before.
        new = [replace(one, calls=one.calls[:1]) for one in rollouts if one is not None]
        found: dict[str, None] = {}
        for begin in range(0, len(new), MAX_KNOWN):
            some = new[begin : begin + MAX_KNOWN]
            found |= dict.fromkeys(silent([*self._known, *some]))
            self._known += some
        if found:
            self._has_warned = True
            logger.warning(
                "%d rollouts (%s) succeeded without a recorded model call, while others beside "
                "them in their process had some. If the agent always calls its model, calls mix: "
                "a global client or environment variable holds the address of one rollout. Make "
                "the client in the agent (base_url=llm.endpoint), or run one rollout at a time in "
                "a process (concurrency=1, and strategy 'cs' for several runners). See: agl doctor",
                len(found),
                ", ".join(list(found)[:3]),
            )


def silent(rollouts: Iterable[Ran]) -> list[str]:
    """Ids of those without a call beside which, in their process, one with calls ran."""
    rollouts = list(rollouts)
    with_calls = [other for other in rollouts if other.calls]
    return [
        one.rollout_id
        for one in rollouts
        if not one.calls
        and any(
            other.process == one.process and one.begin < other.end and other.begin < one.end
            for other in with_calls
        )
    ]


def _ends(request: str) -> str:
    if len(request) <= 2 * MAX_CALL_CHARACTERS:
        return request
    return f"{request[:MAX_CALL_CHARACTERS]} {request[-MAX_CALL_CHARACTERS:]}"
