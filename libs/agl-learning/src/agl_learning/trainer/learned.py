"""What comes of a step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agl.errors import AlgorithmError
from agl_records.types import Exclusion, ExclusionReason

if TYPE_CHECKING:
    from agl_learning.advantages.weighing import Weighed
    from agl_records.ledger.ledger import Ledger


@dataclass
class Learned:
    """What a step has learned."""

    metrics: dict[str, Any]
    trained: bool = True
    """Whether anything was."""
    rows: list[str] = field(default_factory=list[str])
    """Digests of the rows, or examples, that were trained, in their order."""
    rollout_ids: list[str] = field(default_factory=list[str])
    """Of which rollout each is, if that is known."""


def leave_out(
    ledger: "Ledger",
    rows: "Sequence[Weighed]",
    used: "Sequence[Weighed]",
    reason: ExclusionReason,
    detail: str,
) -> None:
    """Say of the rows that an update did not use that they were not trained.

    Raises:
        AlgorithmError: It says that it used others than it was given.
    """
    given, taken = {id(one): one.row for one in rows}, {id(one) for one in used}
    if taken - given.keys():
        raise AlgorithmError(
            f"update returned {len(taken - given.keys())} rows that it was not given. Return "
            "some of those that it was"
        )
    left = [row for key, row in given.items() if key not in taken]
    calls = {(row.rollout_id, row.attempt_id, one) for row in left for one in row.call_ids}
    unused = [item for item in ledger.trained if item.key in calls]
    ledger.trained[:] = [item for item in ledger.trained if item.key not in calls]
    for item in unused:
        ledger.exclude(
            Exclusion(
                rollout_id=item.rollout_id,
                attempt_id=item.attempt_id,
                call_id=item.call_id,
                credit=item.credit,
                advantage=item.advantage,
                reason=reason,
                detail=detail,
            )
        )
