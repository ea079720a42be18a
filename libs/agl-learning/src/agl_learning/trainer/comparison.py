"""A step that was trained again: what came of it then and now, and what differs first."""

import hashlib
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agl.store.base import LightningStore
from agl_learning.advantages.weighing import Weighed
from agl_learning.collect.results import Collected
from agl_records.ledger.documents import each_part
from agl_records.types import LedgerPart

_TINY = 1e-5
"""Smaller differences are none then: of a loss about zero."""
_OF_THE_START = ("step", "generation", "version", "seconds")
_TIMES = "time/"
"""Metrics that say nothing of what was trained, and what the names of others begin with."""


@dataclass(frozen=True)
class Compared:
    """One thing of a step, as it was and as it is now."""

    what: str
    """``weights after step 6``, ``rewards``, the name of a metric ..."""
    before: Any
    """JSON; None where the run did not note it."""
    now: Any
    same: bool | None
    """None where there is nothing to compare with."""
    where: str = ""
    """The first place at which they differ: a rollout, say."""


@dataclass
class Replay:
    """What training a step again has come to."""

    step: int
    begun_at: int
    """The step of the checkpoint from which it was trained again; 0 is the run's beginning."""
    is_exact: bool
    """Whether each bit must be the same; else numbers may differ by ``tolerance``."""
    compared: list[Compared] = field(default_factory=list[Compared])
    """In the order in which one follows from the other."""
    notes: list[str] = field(default_factory=list[str])
    """What a reader must know of it."""

    @property
    def tolerance(self) -> float:
        """Relative, of metrics."""
        return 0.0 if self.is_exact else 1e-3

    @property
    def first_difference(self) -> Compared | None:
        """None where all is as it was."""
        return next((one for one in self.compared if one.same is False), None)

    def compare_metrics(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Add the metrics of a step, bit for bit or as near as ``tolerance``."""
        for name in dict.fromkeys((*before, *now)):
            was: Any = before.get(name)
            is_now: Any = now.get(name)
            of_the_start = name.removeprefix("train/") in _OF_THE_START or name.startswith(_TIMES)
            if of_the_start or (was is None and is_now is None):
                continue
            same = was == is_now or (not self.is_exact and _is_near(was, is_now, self.tolerance))
            self.compared.append(Compared(name, was, is_now, same))

    def compare_weights(self, what: str, before: str | None, now: str | None) -> None:
        """Add what tells weights from others; nothing is compared unless bits must be the same."""
        same = before == now if self.is_exact and before is not None else None
        self.compared.append(Compared(what, before, now, same))

    def compare_rows(
        self, before: Sequence[str] | None, now: Sequence[str], rollout_ids: Sequence[str]
    ) -> None:
        """Add the rows or examples that were trained: tokens, log-probabilities and advantages.

        Of each there is a digest; None where the run noted none. ``rollout_ids`` are those of now.
        """
        where = ""
        if before is not None and before != now:
            pairs = zip(before, now, strict=False)
            at = next((n for n, (was, is_now) in enumerate(pairs) if was != is_now), len(before))
            whose = f" (rollout {rollout_ids[at]})" if at < len(rollout_ids) else ""
            where = f"row {at} of {len(before)}{whose}: its tokens, log-probabilities or advantages"
        same = None if before is None else [*before] == [*now]
        self.compared.append(Compared("rows trained", _short(before), _short(now), same, where))

    async def compare_accounts(
        self, store: LightningStore, run_id: str, collected: Collected
    ) -> None:
        """Add what became of each call, its reward and advantage, against the store's ledger."""
        ids = {rollout.rollout_id for rollout in collected.rollouts}
        parts = [
            part
            async for part in each_part(store, run=run_id, step=self.step, lost=False)
            if part.rollout_id in ids
        ]
        before = _bins(parts)
        collected.ledger.check()
        now = _bins(collected.ledger.parts())
        absent = ("not there",) * 3
        for number, what in enumerate(("bins", "rewards", "advantages")):
            pairs = {
                key: (before.get(key, absent)[number], now.get(key, absent)[number])
                for key in before | now
            }
            differing = [key for key, (was, is_now) in pairs.items() if was != is_now]
            same, where = (not differing if before else None), ""
            if same is False:
                was, is_now = pairs[differing[0]]
                where = f"{differing[0]}: {was!r} then, {is_now!r} now; {len(differing)} differ"
            self.compared.append(Compared(what, len(before), len(now), same, where))
        if not before:
            self.notes.append("the store has no accounts of this step to compare with")


def digest_of(one: Weighed) -> str:
    """What tells a row, and how much it was trained, from another."""
    row, found = one.row, hashlib.sha256()
    for numbers in (
        array("q", row.token_ids),
        array("q", [end for span in row.call_ranges for end in span]),
        array("d", row.logprobs),
        array("d", [advantage.value for advantage in one.advantages]),
        *(array("d", values) for values in (one.tokens, one.returns) if values),
    ):
        found.update(len(numbers).to_bytes(8) + numbers.tobytes())
    return found.hexdigest()[:12]


def _short(digests: Sequence[str] | None) -> str | None:
    if digests is None:
        return None
    whole = hashlib.sha256("".join(digests).encode()).hexdigest()[:12]
    return f"{len(digests)} ({whole})"


def _bins(parts: Sequence[LedgerPart]) -> dict[str, tuple[Any, Any, Any]]:
    """Item -> bin, reward and advantage, rollouts in the order of their ids.

    Not of what is late, as more of it may have come.
    """
    found: dict[str, tuple[Any, Any, Any]] = {}
    for part in sorted(parts, key=lambda part: part.rollout_id):
        for one in (*part.trained, *part.excluded):
            name = f"{one.kind} {one.call_id}".rstrip() + f" of rollout {one.rollout_id}"
            credit, advantage = one.credit, one.advantage
            of_bin = getattr(one, "reason", "trained")
            if of_bin != "late":
                found[name] = of_bin, credit and credit.reward, advantage and advantage.value
    return found


def _is_near(was: Any, now: Any, tolerance: float) -> bool:
    is_number = isinstance(was, int | float) and isinstance(now, int | float)
    return is_number and math.isclose(was, now, rel_tol=tolerance, abs_tol=_TINY)
