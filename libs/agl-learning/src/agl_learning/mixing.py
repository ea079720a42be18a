"""Whether model calls of one rollout were recorded in another that ran beside it.

A call is recorded where its address says. An agent that makes this address global (an environment
variable, a default client) sends there what all rollouts of its process call at that time: some
end without a call, and others have theirs. Neither is odd by itself; agents may make no call, or
many. What an agent that keeps nothing global cannot have is a call with the words of another
rollout's task and none of its own, while that other one, beside it in its process, has no call; as
long as agents tell their tasks to models at all.
"""

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from agl.algorithm.gateway import is_gateway_span
from agl.errors import MixedCallsError
from agl.semconv import ModelCallAttributes as Key
from agl.types import Attempt, Span, without_private

logger = logging.getLogger(__name__)

Said = Sequence[tuple[float, frozenset[str]]]
"""Begins of calls, and those of their words that are words of tasks."""

_WORD = re.compile(r"\w+")
MAX_TASK_CHARACTERS = 2_000
"""So much is read of each text of a task; a document in it has words enough by then."""
MAX_CALL_CHARACTERS = 8_000
"""So much is kept of a call's request from its begin, and as much from its end."""
MAX_KEPT = 500
"""So many rollouts, and those that came with the last of them, wait for others at most."""
MAX_KEPT_CHARACTERS = 32_000_000
"""They wait no longer where their tasks and requests are longer than this together."""


@dataclass(frozen=True)
class Call:
    """A recorded model call."""

    begin: float
    end: float
    request: str
    """Begin and end of its messages, as recorded."""
    call_id: str = ""
    """The span that recorded it."""


@dataclass(frozen=True)
class Ran:
    """A rollout that succeeded, and the model calls that were recorded in it."""

    rollout_id: str
    words: frozenset[str]
    """Of its task."""
    process: str
    begin: float
    end: float
    calls: tuple[Call, ...]

    @property
    def num_characters(self) -> int:
        """Length of what is kept of its task and calls."""
        return sum(map(len, self.words)) + sum(len(call.request) for call in self.calls)

    @cached_property
    def twins(self) -> list[Call]:
        """Calls that asked the same as another at the same time."""
        found: list[Call] = []
        latest: dict[str, Call] = {}
        for call in sorted(self.calls, key=lambda call: call.begin):
            before = latest.get(call.request)
            if before is not None and call.begin < before.end:
                found += [before, call]
            if before is None or before.end < call.end:
                latest[call.request] = call
        return found


def ran(rollout_id: str, task: Any, attempt: Attempt, spans: Sequence[Span]) -> Ran | None:
    """What there is to know of a rollout; None without a runner's name or an end.

    Args:
        rollout_id: Its id.
        task: Its input.
        attempt: The one that counts.
        spans: Of this attempt.
    """
    if attempt.worker_id is None or attempt.end_time is None:
        return None
    calls = [
        Call(
            span.start_time or 0.0,
            span.end_time or 0.0,
            _ends(str(span.attributes.get(Key.INPUT_MESSAGES, ""))),
            span.span_id,
        )
        for span in spans
        if is_gateway_span(span)  # a client's own, as of AgentOps, is where the agent ran
    ]
    return Ran(
        rollout_id,
        _words(without_private(task)),
        attempt.worker_id.rpartition("-")[0],  # see ``agl.utils.workers.worker_name``
        attempt.start_time,
        attempt.end_time,
        tuple(calls),
    )


class MixingCheck:
    """Looks whether calls mixed, at one step after the other.

    A step may consist of several requests that run side by side, one per task for example. Then
    their rollouts are looked at together.
    """

    ran = staticmethod(ran)

    def __init__(self) -> None:
        self._has_warned = False
        self._num_open = 0
        self._kept: list[Ran] = []
        """Rollouts that wait for those that may have run beside them."""

    @contextlib.contextmanager
    def request(self) -> Generator[None]:
        """Around all of a request for rollouts but the look at them."""
        self._num_open += 1
        try:
            yield
        finally:
            self._num_open -= 1

    async def look(self, rollouts: Iterable[Ran | None]) -> None:
        """Look at the rollouts of a step; warn, once, where calls may have mixed.

        While other requests are open the rollouts wait for theirs. They don't where there are many
        by now, since there may always be a request that is open.

        Raises:
            MixedCallsError: They did.
        """
        self._kept += [one for one in rollouts if one is not None]
        if (
            self._num_open
            and len(self._kept) < MAX_KEPT
            and sum(one.num_characters for one in self._kept) < MAX_KEPT_CHARACTERS
        ):
            return
        kept, self._kept = self._kept, []
        pairs = beside(kept)
        if not pairs:
            return
        # In a thread: it reads long texts, and this loop may serve the store.
        found = await asyncio.to_thread(find_mixed, pairs)
        if found is not None:
            silent, other = found
            raise MixedCallsError(
                f"calls of several rollouts mixed: rollout {silent.rollout_id!r} succeeded without "
                f"a recorded model call, and {other.rollout_id!r}, which has {len(other.calls)}, "
                "ran beside it and has a call of its task. The agent makes the address of its LLM "
                "global: a global client, or an environment variable. Make the client in the agent "
                "(base_url=llm.endpoint), or run one rollout at a time in a process "
                "(concurrency=1, and strategy 'cs' for several runners). See: agl doctor"
            )
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%d rollouts succeeded without a recorded model call, while others beside them in "
                "their process had some. If the agent always calls its model, calls mix: a global "
                "client or environment variable holds the address of one rollout. See: agl doctor",
                len({one.rollout_id for one, _ in pairs}),
            )


def beside(rollouts: Sequence[Ran]) -> list[tuple[Ran, Ran]]:
    """Each rollout without a call, with each one with calls that ran beside it in its process."""
    with_calls = [other for other in rollouts if other.calls]
    return [
        (one, other)
        for one in rollouts
        if not one.calls
        for other in with_calls
        if other.process == one.process and one.begin < other.end and other.begin < one.end
    ]


def find_mixed(pairs: Sequence[tuple[Ran, Ran]]) -> tuple[Ran, Ran] | None:
    """The first of ``beside`` of which there is evidence, where that holds for most; else None.

    Each call is read once.
    """
    if not pairs:
        return None
    known = frozenset[str]().union(*(each.words for pair in pairs for each in pair))
    others = {other.rollout_id: other for _, other in pairs}
    said = {
        rollout_id: [(call.begin, known.intersection(_split(call.request))) for call in other.calls]
        for rollout_id, other in others.items()
    }
    common = frozenset[str].intersection(*(each.words for pair in pairs for each in pair))
    told = _with_told_task(others.values(), said, common)
    taken = [
        (one, other)
        for one, other in pairs
        if _has_call_of(one, other, said[other.rollout_id])
        and (one.words == other.words or other.rollout_id in told)
    ]
    silent, found = ({one.rollout_id for one, _ in each} for each in (pairs, taken))
    # An agent that may make no call could meet its words elsewhere by chance, but not often.
    return taken[0] if 2 * len(found) > len(silent) else None


def _has_call_of(one: Ran, other: Ran, said: Said) -> bool:
    """Whether ``other``, which has the calls ``said``, has one of ``one``."""
    if one.words == other.words:
        # Of the same task: then the same was asked twice at a time.
        return any(one.begin <= call.begin <= one.end for call in other.twins)
    own, its = one.words - other.words, other.words - one.words
    return bool(own and its) and any(
        one.begin <= begin <= one.end and its.isdisjoint(words) and _is_said(own, words)
        for begin, words in said
    )


def _with_told_task(
    rollouts: Iterable[Ran], said: Mapping[str, Said], common: frozenset[str]
) -> set[str]:
    """Ids of those whose task's words, but for those ``common`` to all, stand in some call.

    Where an agent's calls do not say its task (a seed, say), words of other tasks stand in them by
    chance.
    """
    return {
        one.rollout_id
        for one in rollouts
        if any(
            _is_said(one.words - common, words)
            for calls in (said[one.rollout_id], *said.values())  # mostly in its own
            for _, words in calls
        )
    }


def _is_said(task: frozenset[str], words: frozenset[str]) -> bool:
    return 2 * len(task & words) >= len(task)


def _ends(request: str) -> str:
    if len(request) <= 2 * MAX_CALL_CHARACTERS:
        return request
    return f"{request[:MAX_CALL_CHARACTERS]} {request[-MAX_CALL_CHARACTERS:]}"


def _split(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _words(task: Any) -> frozenset[str]:
    if isinstance(task, dict):
        values = list(cast("dict[str, Any]", task).values())
    elif isinstance(task, list | tuple):
        values = list(cast("Sequence[Any]", task))
    else:
        text = task if isinstance(task, str) else json.dumps(task, default=str)
        return frozenset(_split(text[:MAX_TASK_CHARACTERS]))
    return frozenset[str]().union(*map(_words, values))
