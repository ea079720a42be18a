"""What failed a rollout, and what becomes of it: one policy for all that learn from rollouts."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from agl.algorithm.gateway import is_gateway_span
from agl.errors import AlgorithmError
from agl.semconv import CLIENT_GONE, ModelCallAttributes as Key
from agl.types import Attempt, Span
from agl.types.records import Boundary, public_failure
from agl_runs.options import Count, Group, Share

FailureKind = Literal["infrastructure", "timeout", "grader", "agent", "cancelled"]
Policy = Literal["exclude", "drop_group", "retry", "keep", "penalise"]

KINDS: dict[Boundary, FailureKind] = {
    **dict.fromkeys(get_args(Boundary), "infrastructure"),
    **{"agent": "agent", "store": "agent", "timeout": "timeout"},
    **{"evaluator": "grader", "cancelled": "cancelled"},
}
"""Boundary of a failed attempt -> its kind, unless servers failed a model call of it."""


@dataclass(frozen=True)
class RolloutFailure:
    """What failed a rollout, or a model call of one that succeeded."""

    kind: FailureKind
    why: str
    boundary: Boundary | None = None
    """Of the attempt that failed."""

    @property
    def cause(self) -> str:
        """What failures of one cause have in common: boundary and type, and not the message."""
        return ": ".join(self.why.split(": ")[:2])


@dataclass(frozen=True, kw_only=True, repr=False)
class Failures(Group):
    """What becomes of a rollout that failed, by what failed it.

    ``exclude`` trains nothing of it, and compares its siblings without it. ``drop_group`` trains
    nothing of its siblings either. ``retry`` runs it again, with the seed that it had, up to
    ``retries`` times, and then excludes it. ``keep`` trains it with the reward that it gave, and
    excludes it if it gave none. ``penalise`` trains it with the reward ``penalty``.

    Args:
        infrastructure: Servers or the network failed a model call of it, also if the agent went on
            and succeeded; or its runner, tracer or resources failed.
        timeout: It ran longer than an attempt may.
        grader: The grader failed, or gave no reward that can be read.
        agent: The agent raised, or returned what is no result.
        retries: How often a rollout runs again. One whose gateway was killed does so without
            ``retry``, too.
        penalty: The reward of what is penalised.
        stop_after: End the run when this part of its newest 64 rollouts, or of a step that has
            more, failed; whatever the policy, and after retries. None goes on.
    """

    infrastructure: Policy = "exclude"
    timeout: Policy = "exclude"
    grader: Policy = "retry"
    agent: Policy = "exclude"
    retries: Count = 2
    penalty: float | None = None
    stop_after: Share | None = 1.0

    def problem(self) -> str | None:
        penalised = [kind for kind in KINDS_WITH_POLICY if getattr(self, kind) == "penalise"]
        if penalised and self.penalty is None:
            return f"{penalised[0]} is 'penalise', which needs failures.penalty: a reward, as -1.0"
        if self.penalty is not None and not penalised:
            return f"penalty is {self.penalty}, and nothing is penalised. Leave it out"
        return None

    def policy(self, failed: RolloutFailure | None) -> Policy:
        """What becomes of such a rollout; one that did not fail is kept."""
        if failed is None:
            return "keep"
        return "exclude" if failed.kind == "cancelled" else getattr(self, failed.kind)

    def runs_again(self, failed: RolloutFailure | None) -> bool:
        """Whether such a rollout does so, unless it did often enough."""
        is_cut_off = failed is not None and failed.boundary == "model"
        return self.policy(failed) == "retry" or is_cut_off


KINDS_WITH_POLICY = Failures.names()[:4]
DEFAULT = Failures()
WINDOW = 64
"""How many rollouts a run looks at when it compares with ``Failures.stop_after``."""


class FailureBudget:
    """Ends a run of which too many rollouts fail."""

    def __init__(self, failures: Failures) -> None:
        self._share = failures.stop_after
        self._newest: list[RolloutFailure | None] = []

    def add(self, ended: Iterable[RolloutFailure | None]) -> None:
        """Count rollouts that have ended, each as what failed it, or None.

        Raises:
            AlgorithmError: Too many have failed; it names the most frequent cause.
        """
        counted = [one for one in ended if one is None or one.kind != "cancelled"]
        self._newest = [*self._newest, *counted][-max(WINDOW, len(counted)) :]
        number, failed = len(self._newest), [one for one in self._newest if one is not None]
        if self._share is None or number < WINDOW or len(failed) < self._share * number:
            return
        [(cause, often)] = Counter(one.cause for one in failed).most_common(1)
        first = next(one for one in failed if one.cause == cause)
        raise AlgorithmError(
            f"{len(failed)} of the newest {number} rollouts failed, and failures.stop_after is "
            f"{self._share:g}. {often} of them failed by {first.kind}, as in: {first.why}. Mend "
            "that and go on with the run: what failed runs again"
        )


def failure_of(attempt: Attempt, spans: Sequence[Span]) -> RolloutFailure | None:
    """What failed an attempt that has ended, or a model call of it.

    Args:
        attempt: The last one of its rollout, or the one that succeeded.
        spans: Of that attempt.
    """
    # A call that the end of the time broke off is the attempt's own.
    call = infrastructure_failure(spans, is_whole=attempt.status != "timeout")
    if attempt.status == "succeeded":
        return None if call is None else RolloutFailure("infrastructure", call)
    error = public_failure(attempt.error)
    if error is None:
        kinds: dict[str, FailureKind] = {"timeout": "timeout", "unresponsive": "infrastructure"}
        failed = RolloutFailure(kinds.get(attempt.status, "agent"), attempt.status)
    else:
        said = error.message
        if error.boundary == "evaluator":  # it is hidden, and says where it stands
            said = said.replace("ROLLOUT", attempt.rollout_id)
        why = f"{error.boundary}: {error.type}: {said}"
        failed = RolloutFailure(KINDS[error.boundary], why, error.boundary)
    if call is not None and failed.kind in ("agent", "timeout"):
        return RolloutFailure("infrastructure", call, failed.boundary)
    return failed


def infrastructure_failure(spans: Sequence[Span], *, is_whole: bool = True) -> str | None:
    """Why the reward of an attempt says nothing about the model, if that is so.

    It is, when servers or the network failed a model call (5xx, 429, a timeout, a lost connection)
    and the agent had to go on without its answer. A call is not counted if the same was asked again
    and answered: a later call of the attempt, to the same model with the same messages and tools,
    whether the client's library repeated it or the agent did. For a call that its client closed, an
    answer that came since it began will do: who asks twice and takes the first answer lost none.

    Args:
        spans: Of one attempt. Only the gateway's say why a call failed. They are in the order of
            their numbers, which a call has from its end.
        is_whole: Whether the attempt came to its end by itself; else calls that its end broke off
            are not counted.

    Returns:
        The error of the first such call.
    """
    calls = [span for span in spans if is_gateway_span(span)]
    failed = [span for span in calls if span.attributes.get(Key.ERROR_KIND) == "infrastructure"]
    if not is_whole:
        failed = [one for one in failed if one.attributes.get(Key.STATUS_CODE) != CLIENT_GONE]
    if not failed:
        return None
    answered = defaultdict[str, list[Span]](list)
    for span in calls:
        if Key.ERROR not in span.attributes:
            answered[_asked(span)].append(span)
    for span in failed:
        is_known = {Key.INPUT_MESSAGES, Key.PROMPT_DIGEST} & span.attributes.keys()
        begin = span.start_time or 0.0
        is_closed = span.attributes.get(Key.STATUS_CODE) == CLIENT_GONE
        is_answered = any(
            one.sequence_id > span.sequence_id or (is_closed and (one.end_time or 0.0) > begin)
            for one in answered[_asked(span)]
        )
        if not (is_known and is_answered):
            return str(span.attributes.get(Key.ERROR))
    return None


def _asked(span: Span) -> str:
    keys = (Key.REQUEST_MODEL, Key.INPUT_MESSAGES, Key.PROMPT_DIGEST, Key.TOOL_DEFINITIONS)
    # Agents can write spans of this form, too, with any values.
    return repr([span.attributes.get(key) for key in keys])
