"""The ledger: every model call, rollout and reward of a step in exactly one bin."""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agl.errors import LedgerError
from agl.types.credit import Advantage, Credit
from agl.types.reasons import ExclusionReason

if TYPE_CHECKING:
    from agl.types.learning import ModelCall, TrainingRow

ItemKind = Literal["call", "rollout", "reward"]
CallKey = tuple[str, str, str]
"""(rollout_id, attempt_id, id of the span); the last two are "" for a whole rollout."""


class LedgerItem(BaseModel):
    """Something that a ledger has in a bin."""

    model_config = ConfigDict(frozen=True)

    kind: ItemKind = "call"
    rollout_id: str
    attempt_id: str = ""
    """"" for a rollout."""
    call_id: str = ""
    """Id of the call's span, or of the reward's; "" for a rollout."""
    truncated: bool = False
    """Of a call that is announced: whether its answer was cut off at the limit of tokens."""

    @property
    def key(self) -> CallKey:
        """What identifies it among the items of its kind."""
        return (self.rollout_id, self.attempt_id, self.call_id)


class Exclusion(LedgerItem):
    """A call, rollout or reward that trained nothing, and why."""

    reason: ExclusionReason
    detail: str = ""
    """A sentence for a person."""
    credit: Credit | None = None
    """What the call got all the same."""
    advantage: Advantage | None = None


class Trained(LedgerItem):
    """A call that was trained, or a reward that reached a call."""

    row: int | None = None
    """In which row of its rollout, from 0."""
    model_version: str | None = None
    """Of the weights that sampled it."""
    credit: Credit | None = None
    advantage: Advantage | None = None


_Number = Annotated[int, Field(ge=-(1 << 53), le=1 << 53)]
"""Databases have no larger ones."""


class LedgerPart(BaseModel):
    """The account of one rollout in one step, as the store keeps it."""

    model_config = ConfigDict(frozen=True)

    rollout_id: str
    step: _Number | None = None
    """Of the algorithm; None outside of steps."""
    mode: str | None = None
    """Of the rollout."""
    algorithm: str | None = None
    run: str | None = None
    """Id of the run; None outside of runs that have one."""
    generation: _Number = 0
    """Which start of the run wrote it, from 1; 0 where starts are not counted."""
    version: str | None = None
    """Of the weights that came out of the step."""
    lost: bool = False
    """Whether the run went back behind it: it was killed and went on from an earlier checkpoint.
    What is lost counts in no sum."""
    problem: str = ""
    """Why its items cannot be read; they are missing then."""
    items: list[LedgerItem] = Field(default_factory=list[LedgerItem])
    """Everything that was announced."""
    trained: list[Trained] = Field(default_factory=list[Trained])
    excluded: list[Exclusion] = Field(default_factory=list[Exclusion])


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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and vars(self) == vars(other)

    # --- announcing

    def add_call(self, call: "ModelCall") -> None:
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
        row: "TrainingRow",
        advantages: Iterable[Advantage | None] | None = None,
        number: int | None = None,
    ) -> None:
        """All calls of ``row`` were trained.

        Args:
            row: The row.
            advantages: One per call of it.
            number: Which row of its rollout it is, from 0.
        """
        given = [None] * len(row.call_ids) if advantages is None else list(advantages)
        versions = row.model_versions or [None] * len(row.call_ids)
        for call, advantage, version in zip(_calls_of(row), given, versions, strict=True):
            self.trained.append(
                Trained(**call, row=number, model_version=version, advantage=advantage)
            )

    def use_reward(self, rollout_id: str, attempt_id: str, span_id: str) -> None:
        """A reward reached at least one call."""
        self.used_rewards.append(
            Trained(kind="reward", rollout_id=rollout_id, attempt_id=attempt_id, call_id=span_id)
        )

    def exclude(self, exclusion: Exclusion) -> None:
        """One item trained nothing."""
        self.exclusions.append(exclusion)

    def exclude_row(self, row: "TrainingRow", reason: ExclusionReason, detail: str = "") -> None:
        """No call of ``row`` was trained."""
        for call in _calls_of(row):
            self.exclude(Exclusion(**call, reason=reason, detail=detail))

    def merge(self, other: "Ledger") -> None:
        """Add what another ledger holds."""
        self.items |= other.items
        self.trained.extend(other.trained)
        self.used_rewards.extend(other.used_rewards)
        self.exclusions.extend(other.exclusions)

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


def _calls_of(row: "TrainingRow") -> list[dict[str, Any]]:
    """Per call of a row, what a bin has of it."""
    ids = {"rollout_id": row.rollout_id, "attempt_id": row.attempt_id}
    return [
        {**ids, "call_id": call_id, "credit": credit}
        for call_id, credit in zip(row.call_ids, row.credits, strict=True)
    ]
