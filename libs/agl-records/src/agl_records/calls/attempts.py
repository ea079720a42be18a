"""Which attempt of a rollout is used, and why the others are not."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from agl.types import Attempt, Span
from agl.utils.rewards import newest_attempt
from agl_records.types import ExclusionReason

AttemptKey = tuple[str, str]
"""(rollout_id, attempt_id)."""


def unused_attempts(
    groups: Mapping[AttemptKey, Sequence[Span]], attempts: Sequence[Attempt] | None
) -> dict[AttemptKey, tuple[ExclusionReason, str]]:
    """The attempts that are not used, with code and sentence, out of the spans of each.

    Where ``attempts`` of the same rollouts are given, the last that succeeded is used; otherwise
    the one that began last.
    """
    in_order = sorted(attempts or (), key=lambda attempt: attempt.sequence_id)
    status = {(a.rollout_id, a.attempt_id): a.status for a in in_order}
    chosen = {rollout: attempt for (rollout, attempt), s in status.items() if s == "succeeded"}
    if attempts is None:  # the attempt of each rollout that began last
        of_rollout: defaultdict[str, dict[str, Sequence[Span]]] = defaultdict(dict)
        for (rollout_id, attempt_id), spans in groups.items():
            of_rollout[rollout_id][attempt_id] = spans
        chosen = {rollout: newest_attempt(begun) for rollout, begun in of_rollout.items()}
    reasons: dict[AttemptKey, tuple[ExclusionReason, str]] = {}
    for key in groups:
        used = chosen.get(key[0])
        if used == key[1]:
            continue
        if used is not None:
            reasons[key] = ("superseded_attempt", f"attempt {used!r} is used")
        else:
            found = status.get(key, "not among the attempts given")
            reasons[key] = (
                "failed_attempt",
                f"no attempt succeeded; the status of this one: {found}",
            )
    return reasons
