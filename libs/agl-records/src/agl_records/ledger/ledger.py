"""The ledger: every model call, rollout and reward of a step in exactly one bin.

The account of a rollout in a step is a ``LedgerPart``; see ``documents``. Save a step after
the update that used its rows, so that rows of an update that failed are never stored as trained.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agl.store.base import LightningStore
from agl.types import Rollout
from agl_records.ledger.documents import each_part, put_parts
from agl_records.training_data import ModelCall, TrainingRow
from agl_records.types import (
    Advantage,
    CallKey,
    Credit,
    Exclusion,
    ExclusionReason,
    ItemKind,
    LedgerError,
    LedgerItem,
    LedgerPart,
    Trained,
)


class Ledger:
    """Every model call, rollout and reward in exactly one bin: trained, or excluded with a reason.

    Items are announced (``add_call``, ``add_rollout``, ``add_reward``) and then put in a bin by
    ``train``, ``use_reward`` or ``exclude``. A rollout without a bin of its own is trained where
    one of its calls is, and else excluded as most of its calls are. ``check`` refuses an item in no
    bin, an item in two, and one that was never announced.
    """

    def __init__(self) -> None:
        self.items: dict[tuple[ItemKind, CallKey], LedgerItem] = {}
        self.trained: list[Trained] = []
        """Calls."""
        self.used_rewards: list[Trained] = []
        self.exclusions: list[Exclusion] = []
        self.models: dict[CallKey, str] = {}
        """Which of several trained models made a call, where that is known; not stored."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and vars(self) == vars(other)

    # --- announcing

    def add_call(self, call: ModelCall) -> None:
        """Announce a call, and its rollout; announcing it again changes nothing."""
        self._add(
            LedgerItem(
                rollout_id=call.rollout_id,
                attempt_id=call.attempt_id,
                call_id=call.call_id,
                truncated=call.is_truncated,
            )
        )
        self.add_rollout(call.rollout_id)

    def add_rollout(self, rollout_id: str) -> None:
        """Announce a rollout; announcing it again changes nothing."""
        if ("rollout", (rollout_id, "", "")) not in self.items:
            self._add(LedgerItem(kind="rollout", rollout_id=rollout_id))

    def add_reward(self, rollout_id: str, attempt_id: str, span_id: str) -> None:
        """Announce a reward, and its rollout; announcing it again changes nothing."""
        self._add(
            LedgerItem(kind="reward", rollout_id=rollout_id, attempt_id=attempt_id, call_id=span_id)
        )
        self.add_rollout(rollout_id)

    def _add(self, item: LedgerItem) -> None:
        self.items.setdefault((item.kind, item.key), item)

    # --- putting into bins

    def train(
        self,
        row: TrainingRow,
        advantages: Iterable[Advantage | None] | None = None,
        number: int | None = None,
    ) -> None:
        """All calls of ``row`` were trained.

        Args:
            row: The row.
            advantages: One per call of it.
            number: Which row of its rollout it is, from 0.
        """
        versions = row.model_versions or [None] * len(row.call_ids)
        for call, version in zip(_calls_of(row, advantages), versions, strict=True):
            self.trained.append(Trained(**call, row=number, model_version=version))

    def use_reward(self, rollout_id: str, attempt_id: str, span_id: str) -> None:
        """A reward reached at least one call."""
        self.used_rewards.append(
            Trained(kind="reward", rollout_id=rollout_id, attempt_id=attempt_id, call_id=span_id)
        )

    def exclude(self, exclusion: Exclusion) -> None:
        """One item trained nothing."""
        self.exclusions.append(exclusion)

    def exclude_rollout(self, rollout_id: str, reason: ExclusionReason, detail: str) -> None:
        """A rollout, which is announced with this, trained nothing, whatever its calls did."""
        self.add_rollout(rollout_id)
        self.exclude(Exclusion(kind="rollout", rollout_id=rollout_id, reason=reason, detail=detail))

    def exclude_call(
        self, call: ModelCall, reason: ExclusionReason, detail: str, credit: Credit | None = None
    ) -> None:
        """A call was not trained, whatever it got."""
        ids = {name: getattr(call, name) for name in ("rollout_id", "attempt_id", "call_id")}
        self.exclude(Exclusion(**ids, reason=reason, detail=detail, credit=credit))

    def exclude_row(
        self,
        row: TrainingRow,
        reason: ExclusionReason,
        detail: str = "",
        advantages: Iterable[Advantage | None] | None = None,
    ) -> None:
        """No call of ``row`` was trained; ``advantages`` are what they got all the same."""
        for call in _calls_of(row, advantages):
            self.exclude(Exclusion(**call, reason=reason, detail=detail))

    def exclude_trained(self, why: Mapping[CallKey, tuple[ExclusionReason, str]]) -> None:
        """Of what was put down as trained, these calls are not, after all."""
        for one in (one for one in self.trained if one.key in why):
            given, (reason, detail) = one.model_dump(exclude={"row", "model_version"}), why[one.key]
            self.exclude(Exclusion(**given, reason=reason, detail=detail))
        self.trained = [one for one in self.trained if one.key not in why]

    def merge(self, other: "Ledger") -> None:
        """Add what another ledger holds."""
        self.items |= other.items
        self.trained.extend(other.trained)
        self.used_rewards.extend(other.used_rewards)
        self.exclusions.extend(other.exclusions)
        self.models |= other.models

    def of_model(self, name: str) -> "Ledger":
        """A ledger of its own, without the calls of which it is known that another model made them.

        Args:
            name: One of several models that are trained.
        """
        others = {("call", key) for key, model in self.models.items() if model != name}
        own = Ledger()
        own.merge(self)
        own.items = {place: item for place, item in self.items.items() if place not in others}
        own.trained = [one for one in self.trained if (one.kind, one.key) not in others]
        own.exclusions = [one for one in self.exclusions if (one.kind, one.key) not in others]
        return own

    # --- reading

    def _announced(self, kind: ItemKind) -> list[CallKey]:
        return [key for of, key in self.items if of == kind]

    @property
    def calls(self) -> set[CallKey]:
        """The calls that were announced."""
        return set(self._announced("call"))

    @property
    def rollout_ids(self) -> list[str]:
        """The rollouts that were announced, in order."""
        return [key[0] for key in self._announced("rollout")]

    def reasons(self, kind: ItemKind = "call") -> dict[str, int]:
        """Excluded items of one kind per reason; rollouts as ``rollouts`` has them."""
        if kind == "rollout":
            bins = self.rollouts().values()
            return dict(Counter(reason for reason in bins if reason != "trained"))
        return dict(Counter(e.reason for e in self.exclusions if e.kind == kind))

    def rollouts(self) -> dict[str, str]:
        """Rollout id -> "trained" or the reason why not; without those that are in no bin."""
        bins: dict[str, str] = {}
        votes: dict[str, Counter[str]] = {}
        for exclusion in self.exclusions:
            if exclusion.kind == "rollout":
                bins[exclusion.rollout_id] = exclusion.reason
            elif exclusion.kind == "call":
                votes.setdefault(exclusion.rollout_id, Counter())[exclusion.reason] += 1
        for trained in self.trained:
            bins[trained.rollout_id] = "trained"
        for rollout_id, counter in votes.items():
            bins.setdefault(rollout_id, counter.most_common(1)[0][0])
        return bins

    def summary(self) -> dict[str, Any]:
        """``{"calls": n, "trained": n, "excluded": {reason: n}}``, of calls.

        ``rollouts`` and ``rewards`` have the same three of theirs.
        """
        return {
            **self._sums("call", "calls"),
            "rollouts": self._sums("rollout"),
            "rewards": self._sums("reward", trained="used"),
        }

    def _sums(
        self, kind: ItemKind, total: str = "total", trained: str = "trained"
    ) -> dict[str, Any]:
        done = {
            "call": len(self.trained),
            "rollout": sum(name == "trained" for name in self.rollouts().values()),
            "reward": len(self.used_rewards),
        }
        return {
            total: len(self._announced(kind)),
            trained: done[kind],
            "excluded": self.reasons(kind),
        }

    def check(self) -> None:
        """Refuse an imbalance.

        Raises:
            LedgerError: An item is in no bin or in several, or was never announced. Both sides are
            in the message.
        """
        bins: Counter[tuple[ItemKind, CallKey]] = Counter()
        bins.update(("call", item.key) for item in self.trained)
        bins.update(("reward", item.key) for item in self.used_rewards)
        bins.update((item.kind, item.key) for item in self.exclusions)
        # A rollout takes its bin from its calls where it has none of its own; both is too many.
        trained = {item.rollout_id for item in self.trained}
        bins.update(("rollout", (rollout_id, "", "")) for rollout_id in trained)
        for item in self.exclusions:
            if item.kind == "call":
                rollout = ("rollout", (item.rollout_id, "", ""))
                bins[rollout] = bins[rollout] or 1
        kinds: tuple[ItemKind, ...] = ("call", "rollout", "reward")
        for kind in kinds:
            announced = set(self._announced(kind))
            found = {key: count for (of, key), count in bins.items() if of == kind}
            missing = sorted(announced - found.keys())
            unknown = sorted(found.keys() - announced)
            double = sorted(key for key, count in found.items() if count > 1)
            if missing or unknown or double:
                total, done, reasons = self._sums(kind).values()
                raise LedgerError(
                    f"ledger does not balance: {total} {kind}s, {done} trained, "
                    f"{sum(reasons.values())} excluded {reasons}; "
                    f"in no bin: {missing[:5]}, in several: {double[:5]}, "
                    f"never announced: {unknown[:5]}"
                )

    # --- as the store keeps it

    def parts(self, **about: Any) -> list[LedgerPart]:
        """The account of each rollout; ``about`` are other fields of ``LedgerPart``."""
        parts = {
            rollout_id: LedgerPart(rollout_id=rollout_id, **about)
            for rollout_id in self.rollout_ids
        }
        for item in self.items.values():
            parts[item.rollout_id].items.append(item)
        for item in (*self.trained, *self.used_rewards):
            parts[item.rollout_id].trained.append(item)
        for item in self.exclusions:
            parts[item.rollout_id].excluded.append(item)
        return list(parts.values())

    @classmethod
    def of_parts(cls, parts: Iterable[LedgerPart]) -> "Ledger":
        """The ledger that consists of these accounts."""
        ledger = cls()
        for part in parts:
            for item in part.items:
                ledger._add(item)
            ledger.trained.extend(item for item in part.trained if item.kind == "call")
            ledger.used_rewards.extend(item for item in part.trained if item.kind == "reward")
            ledger.exclusions.extend(part.excluded)
        return ledger


def _calls_of(
    row: TrainingRow, advantages: Iterable[Advantage | None] | None
) -> list[dict[str, Any]]:
    """Per call of a row, what a bin has of it."""
    ids = {"rollout_id": row.rollout_id, "attempt_id": row.attempt_id}
    given = [None] * len(row.call_ids) if advantages is None else advantages
    return [
        {**ids, "call_id": call_id, "credit": credit, "advantage": advantage}
        for call_id, credit, advantage in zip(row.call_ids, row.credits, given, strict=True)
    ]


async def save_ledger(
    store: LightningStore,
    ledger: Ledger,
    rollouts: Sequence[Rollout],
    *,
    step: int | None = None,
    algorithm: str | None = None,
    run: str | None = None,
    generation: int = 0,
    version: str | int | None = None,
) -> None:
    """Check a ledger and keep it, all or nothing; again for the same step, it replaces that.

    Args:
        store: Where the rollouts are.
        ledger: Everything that became of them.
        rollouts: As ``wait_for_rollouts`` or ``query_rollouts`` gave them; all that the ledger
            knows, as ``Collected.rollouts``.
        step: Of the algorithm.
        algorithm: Its name.
        run: Id of the run; None takes run and start from the metadata of the first rollout.
        generation: Which start of the run this is, from 1.
        version: Of the weights that came out of the step.

    Raises:
        LedgerError: It does not balance, or knows a rollout that was not given. Nothing was stored.
    """
    if run is None and rollouts:
        about = rollouts[0].metadata or {}
        run, generation = about.get("run"), about.get("generation", generation)
    ledger.check()
    modes = {rollout.rollout_id: rollout.mode for rollout in rollouts}
    if missing := [one for one in ledger.rollout_ids if one not in modes]:
        raise LedgerError(
            f"the ledger knows {len(missing)} rollouts that were not given ({missing[:3]}). Give "
            "all, those that were lost and ran again too: Collected.rollouts has them"
        )
    parts = ledger.parts(
        step=step,
        algorithm=algorithm,
        run=run,
        generation=generation,
        version=None if version is None else str(version),
    )
    with_modes = [part.model_copy(update={"mode": modes[part.rollout_id]}) for part in parts]
    await put_parts(store, with_modes)


async def load_parts(
    store: LightningStore,
    rollouts: Sequence[Rollout | str] | None = None,
    *,
    run: str | None = None,
    step: int | None = None,
    lost: bool | None = False,
) -> list[LedgerPart]:
    """The accounts that count, by run and step.

    Args:
        store: Where they are.
        rollouts: Only these, or those of these ids; None for all that the store has.
        run: Only of this run.
        step: Only of this step.
        lost: True for those that the run went back behind instead; None for both.
    """
    ids = None
    if rollouts is not None:
        ids = [one if isinstance(one, str) else one.rollout_id for one in rollouts]
    found = each_part(store, rollout_id_in=ids, run=run, step=step, lost=lost)
    return [part async for part in found]


async def load_ledger(
    store: LightningStore, rollouts: Sequence[Rollout] | None = None, *, step: int | None = None
) -> Ledger:
    """The ledger of the accounts that ``load_parts`` gives; empty when there are none."""
    return Ledger.of_parts(await load_parts(store, rollouts, step=step))
