"""What a run has collected and trained so far, place by place, as its store keeps it.

A place is the training or the evaluation after so many steps. Its rollouts have the keys
``algorithm/run/mode-after/round/group/copy``: who asks for them again gets those that succeeded.
When all have ended, a record says which they were, those that failed too, so that a step that is
trained again after a kill has the same rollouts. Once the place is done, the record has its
metrics, and what tells the weights that came out from others.

What can not be used any more is drawn anew: the store counts from which place on, and the round in
a key is the number of such places up to its own.
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote

from agl.errors import ConfigError, NotSupportedError
from agl.store.base import LightningStore
from agl.store.queries import PAGE
from agl.types import Document, RolloutMode
from agl_learning.collect.results import Collected
from agl_learning.run.folder import Generation

logger = logging.getLogger("agl.learning")

KIND: Final = "step"
"""Of the documents."""
_REDRAWN: Final = "redrawn"


@dataclass(frozen=True)
class Record:
    """What was collected at a place, and what came of it; JSON values."""

    round: int
    rollouts: list[tuple[int, str]]
    """(group, id) of each rollout that counts, in their order."""
    lost: list[str]
    """Ids of those that ran once more."""
    seconds: float
    succeeded: int
    calls: int
    metrics: dict[str, Any] | None = None
    """None as long as the place is not done."""
    weights: str | None = None
    """What tells the weights that came out from others; None where nobody looked."""
    rows: list[str] = field(default_factory=list[str])
    """Digests of the rows that were trained, in their order."""

    @classmethod
    def of(cls, collected: Collected, round_: int) -> "Record":
        """That of a collection that has just ended."""
        return cls(
            round_,
            [(one.group, one.rollout.rollout_id) for one in collected.ended],
            [one.rollout.rollout_id for one in collected.lost],
            collected.seconds,
            *_size(collected),
        )

    @property
    def copies(self) -> int:
        """How often each task ran."""
        return len(self.rollouts) // len({group for group, _ in self.rollouts})

    @property
    def rollout_ids(self) -> list[str]:
        """Of all that the account knows."""
        return [*(rollout_id for _, rollout_id in self.rollouts), *self.lost]

    def what_is_gone(self, collected: Collected) -> str:
        """What the store lacks of its rollouts, which are all there; "" if nothing.

        A machine that dies may take spans along, of a store that does not sync each commit.
        """
        succeeded, calls = _size(collected)
        if succeeded < self.succeeded:
            return f"are not whole in the store: {succeeded} succeeded of {self.succeeded}"
        if calls < self.calls:
            return f"are not whole in the store: {calls} calls of {self.calls}"
        return ""


def _size(collected: Collected) -> tuple[int, int]:
    return len(collected.ended) - collected.num_failed, len(collected.ledger.calls)


def _place(mode: RolloutMode, after: int) -> int:
    """The evaluation after so many steps comes before the training after them."""
    return 2 * after + (mode == "train")


class Records:
    """Those of one run, of which ``start`` writes; a store that keeps no documents has none."""

    def __init__(self, store: LightningStore, algorithm: str, start: Generation) -> None:
        self._store, self._algorithm, self._start = store, algorithm, start
        self._redrawn: list[int] = []
        self._records: dict[int, Record] = {}

    async def read(self, after: int = 0) -> None:
        """Read the records of what comes after so many steps, and what is drawn anew."""
        found = await self._query(key_in=[f"{self._prefix}{_REDRAWN}"])
        self._redrawn = [place for one in found for place in one.body["places"]]
        last = self._key(_place("val", after) - 1) if after else None
        while page := await self._query(key_prefix=self._prefix, after=last, limit=PAGE):
            for one in page:
                name = one.key.removeprefix(self._prefix)
                if name != _REDRAWN:
                    body: dict[str, Any] = dict(one.body)
                    body["rollouts"] = [(group, one_id) for group, one_id in body["rollouts"]]
                    try:
                        self._records[int(name)] = Record(**body)
                    except TypeError as error:
                        raise ConfigError(
                            f"the store's record {one.key!r} is not of this version of agl-learning"
                            f" ({error}). Go on with the version that wrote it"
                        ) from error
            last = page[-1].key

    async def _query(self, **query: Any) -> Sequence[Document]:
        try:
            return await self._store.query_documents(KIND, **query)
        except NotSupportedError:  # a store of 0.3
            return []

    @property
    def _prefix(self) -> str:
        return f"{quote(self._start.run, safe='')}/"

    def _key(self, place: int) -> str:
        return f"{self._prefix}{place:012d}"

    def round(self, mode: RolloutMode, after: int) -> int:
        """How often what came at a place was given up."""
        place = _place(mode, after)
        return sum(first <= place for first in self._redrawn)

    def key(self, mode: RolloutMode, after: int) -> str:
        """Under which the rollouts of a place stand, or will."""
        number = self.round(mode, after)
        return f"{self._algorithm}/{self._start.run}/{mode}-{after}/{number}"

    def find(self, mode: RolloutMode, after: int) -> Record | None:
        """The record of a place; None if it has none, or that was given up."""
        record = self._records.get(_place(mode, after))
        return record if record and record.round == self.round(mode, after) else None

    def find_done(self, mode: RolloutMode, after: int) -> Record | None:
        """The record of a place that is done."""
        record = self.find(mode, after)
        return record if record and record.metrics is not None else None

    def steps(self) -> dict[int, Record]:
        """Of each step that was trained, by its number."""
        after = [place // 2 for place in sorted(self._records) if place % 2]
        found = {number + 1: self.find_done("train", number) for number in after}
        return {step: one for step, one in found.items() if one}

    def metrics(self) -> list[dict[str, Any]]:
        """Those of all places that are done, in order."""
        modes: tuple[RolloutMode, ...] = ("val", "train")
        found = [self.find_done(modes[at % 2], at // 2) for at in sorted(self._records)]
        return [one.metrics for one in found if one and one.metrics]

    async def put(self, mode: RolloutMode, after: int, record: Record) -> None:
        """Keep the record of a place; it takes the place of the one before."""
        self._records[_place(mode, after)] = record
        await self._put(self._key(_place(mode, after)), asdict(record))

    async def done(self, mode: RolloutMode, after: int, metrics: dict[str, Any], **of: Any) -> None:
        """Note what came of a place: its ``metrics``, and ``weights`` and ``rows`` if trained."""
        if (record := self.find(mode, after)) is not None:
            await self.put(mode, after, replace(record, metrics=metrics, **of))

    async def _put(self, key: str, body: dict[str, Any]) -> None:
        document = Document(kind=KIND, key=key, body=body, version=self._start.number + 1)
        try:
            await self._store.put_documents([document])
        except NotSupportedError:
            logger.debug("the store keeps no documents; %s is not kept", key)

    async def redraw(self, mode: RolloutMode, after: int) -> None:
        """Give up what came at a place, and at all later ones."""
        self._redrawn.append(_place(mode, after))
        await self._put(f"{self._prefix}{_REDRAWN}", {"places": self._redrawn})
