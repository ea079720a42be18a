"""What the algorithm's process does for verl: runs groups, keeps the account, says what came of it.

Every model call of every rollout ends in one bin of the ledger. Calls that verl may train stay open
until verl says what it did with them (``Settle``), or until the run ends.
"""

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agl.types import RolloutMode
from agl_learning.advantages.estimator_option import OF_TOKENS
from agl_learning.advantages.weighing import Weighed
from agl_learning.collect.step_metrics import Totals, usable_rows, why_nothing
from agl_learning.run.folder import Generation
from agl_records.ledger.ledger import Ledger
from agl_records.training_data import TrainingRow
from agl_records.types import Advantage, ExclusionReason
from agl_verl.messages import Advantages, GroupAnswer, GroupRequest, Row, Settle, row_key
from agl_verl.options import NAME
from agl_verl.record import Record
from agl_verl.row_building import Level, Limits, fit, split, to_row

if TYPE_CHECKING:
    from agl.store.base import LightningStore
    from agl.types import Dataset
    from agl_learning.collect.collector import Collector
    from agl_learning.collect.results import Collected

logger = logging.getLogger("agl.verl")


@dataclass
class _Held:
    """A group whose rows verl has, and has not trained yet."""

    request: GroupRequest
    collected: "Collected"
    rows: dict[str, TrainingRow] = field(default_factory=dict[str, TrainingRow])
    """By key."""
    open: set[str] = field(default_factory=set[str])
    """Keys of the rows of which nothing is known yet."""


@dataclass
class Policy:
    """How rollouts become rows."""

    level: Level
    limits: Limits
    timeout_seconds: float | None
    """Of a whole group."""
    estimator: str = "grpo"
    """Which of ``agl_learning.advantages.estimators`` makes verl's advantages."""
    dimensions: bool = False
    """Whether the dimensions of rewards are read, for algorithms that compare each by itself."""
    waits: bool = False
    """Whether a step's rollouts are all sampled with the weights of the step before (``sync``)."""


@dataclass
class Groups:
    """Answers verl's questions."""

    store: "LightningStore"
    collector: "Collector"
    train: "Dataset[Any]"
    val: "Dataset[Any]"
    resources: dict[str, str]
    """Mode -> id of what the agents get."""
    policy: Policy
    generation: Generation
    """Which start of the run this is."""
    since: tuple[int, int] | None = None
    """(step, start) of the checkpoint that this start went on from, and which start trained it."""
    totals: Totals = field(default_factory=Totals)
    _held: dict[str, _Held] = field(default_factory=dict[str, _Held], init=False)
    """By uid."""
    _asked: dict[str, GroupRequest] = field(default_factory=dict[str, GroupRequest], init=False)
    """Those that run now."""
    _rounds: dict[tuple[bool, int, int], list[str]] = field(
        default_factory=dict[tuple[bool, int, int], list[str]], init=False
    )
    """Of a task in a step: the uids under which verl asked for it, in their order."""
    _record: Record = field(default_factory=Record, init=False)

    async def run(self, request: GroupRequest) -> GroupAnswer:
        """Run one task, and make rows of what came of it; rollouts without end are cancelled."""
        self._asked[request.uid] = request
        answer = await self._answer(request)
        # Not in a `finally`: `end` accounts for what was broken off.
        del self._asked[request.uid]
        return answer

    async def _answer(self, request: GroupRequest) -> GroupAnswer:
        collected = await self._collect(request)
        if request.validate:
            return await self._validation(request, collected)
        held, rows = self._rows(request, collected)
        if not rows:
            dropped = why_nothing(collected)
            logger.warning("task %d: its group is dropped: %s", request.index, dropped)
            await self._close(held, "unused_group", f"its group was dropped: {dropped}")
            self._record.dropped.append(collected)
            return GroupAnswer([], dropped)
        self._held[request.uid] = held
        return GroupAnswer(rows)

    def weighed(self, advantages: Advantages) -> list[Weighed]:
        """The rows that have advantages, with those of their calls."""
        held = {key: row for one in self._held.values() for key, row in one.rows.items()}
        found = [
            _weighed(held[key], values, self.policy.estimator)
            for key, values in advantages.items()
            if key in held
        ]
        return [one for one in found if one.advantages]

    async def settle(self, settle: Settle) -> dict[str, float]:
        """Put the calls of a training step into their bins; returns its metrics."""
        touched: dict[str, _Held] = {}
        for key, advantages in settle.advantages.items():
            held = self._held.get(key.rsplit("_", 2)[0])
            if held is None or key not in held.rows:
                self._record.unknown_rows += 1  # asked for before a restart
                continue
            touched[held.request.uid] = held
            held.open.discard(key)
            number = int(key.rsplit("_", 1)[1])
            ledger, estimator = held.collected.ledger, self.policy.estimator
            _train(held.rows[key], advantages, number, ledger, estimator)
        for held in touched.values():
            reason = "verl left this row of its group out"
            await self._close(held, "unused_group", reason, settle.step)
            self._held.pop(held.request.uid, None)
        return self._record.take([h.collected for h in touched.values()], settle.step)

    def validated(self) -> dict[str, float]:
        """Metrics of the validation that has ended."""
        return self._record.take_validation()

    async def end(self) -> None:
        """Account for everything that verl never trained, and for what was broken off."""
        for request in list(self._asked.values()):
            # An error would keep the rest out of the account.
            held, _ = self._rows(request, await self._ask(request, at_once=True))
            await self._close(held, "unused_group", "the run ended before its group did")
        self._asked.clear()
        for held in list(self._held.values()):
            await self._close(
                held,
                "unused_group",
                "verl did not take its group: it was too old by then, or the run ended first",
            )
        self._held.clear()

    async def _collect(self, request: GroupRequest) -> "Collected":
        limit = self.policy.timeout_seconds
        try:
            return await asyncio.wait_for(self._ask(request), limit)
        except TimeoutError:
            logger.error(
                "task %d (%s, %d rollouts, step %d) has not ended in %s seconds, "
                "so it is cancelled: %s",
                request.index,
                "val" if request.validate else "train",
                request.copies,
                request.step,
                limit,
                await self._missing(request),
            )
            return await self._ask(request, at_once=True)

    async def _ask(self, request: GroupRequest, at_once: bool = False) -> "Collected":
        tasks = self.val if request.validate else self.train
        mode: RolloutMode = "val" if request.validate else "train"
        return await self.collector.collect(
            [tasks[request.index]],
            request.copies,
            mode,
            self.resources[mode],
            {
                "algorithm": NAME,
                **self.generation.metadata,
                "step": request.step,
                "round": self._round(request),
                "uid": request.uid,
            },
            key=self._key(request),
            first_group=request.index,
            at_once=at_once,
        )

    def _round(self, request: GroupRequest) -> int:
        """How often verl had asked for the task in this step before."""
        place = (request.validate, request.step, request.index)
        uids = self._rounds.setdefault(place, [])
        if request.uid not in uids:
            uids.append(request.uid)
        return uids.index(request.uid)

    def _key(self, request: GroupRequest) -> str:
        """Of the group; the same for a later start only where the same weights sample it.

        That is the step after a checkpoint, where each step waits for its rollouts: what a dead
        start finished of it need not run again. verl draws new uids, so they are not in the key.
        """
        run, number = self.generation.run, self.generation.number
        if request.validate or not self.policy.waits:
            return f"{NAME}/{run}/{number}/{request.uid}"
        step, start = self.since or (-1, number)
        since = start if step + 1 == request.step else number
        return f"{NAME}/{run}/{since}/step-{request.step}/{self._round(request)}"

    async def _missing(self, request: GroupRequest) -> str:
        """What of a group has not ended, and who there is to do it."""
        count = Counter(
            rollout.status
            for rollout in await self.store.query_rollouts()
            if (rollout.metadata or {}).get("uid") == request.uid
        )
        workers = list(await self.store.query_workers())
        busy = sum(worker.status == "busy" for worker in workers)
        states = ", ".join(f"{number} {status}" for status, number in sorted(count.items()))
        return f"{states or 'none was queued'}; {len(workers)} runners, {busy} of them busy"

    def _rows(self, request: GroupRequest, collected: "Collected") -> tuple[_Held, list[Row]]:
        held = _Held(request, collected)
        sessions = {id(one): number for number, one in enumerate(collected.ended)}
        made: list[Row] = []
        for one, numbered in usable_rows(collected):
            session, number = sessions[id(one)], 0
            for _, row in numbered:
                for part in split(row, self.policy.level):
                    kept = fit(part, self.policy.limits, collected.ledger)
                    if kept is None:
                        continue
                    held.rows[row_key(request.uid, session, number)] = kept
                    reward = (kept.reward or 0.0) if one.reward is None else one.reward
                    named = one.rewards if self.policy.dimensions else {}
                    made.append(to_row(kept, session, number, reward, named))
                    number += 1
        held.open = set(held.rows)
        return held, made

    async def _validation(self, request: GroupRequest, collected: "Collected") -> GroupAnswer:
        rows: list[Row] = []
        for session, one in enumerate(collected.ended):
            for row in one.rows:
                collected.ledger.exclude_row(row, "not_trained_mode", "its rollout is a validation")
            if one.reward is not None and one.rows:
                rows.append(to_row(one.rows[-1], session, 0, one.reward, {}))
        await self._save(collected, request.step)
        self._record.validations.append(collected)
        dropped = "" if rows else why_nothing(collected)
        return GroupAnswer(rows, dropped)

    async def _close(
        self, held: _Held, reason: ExclusionReason, detail: str, trained_in: int | None = None
    ) -> None:
        for key in held.open:
            held.collected.ledger.exclude_row(held.rows[key], reason, detail)
        held.open = set()
        await self._save(held.collected, held.request.step, trained_in)

    async def _save(self, collected: "Collected", step: int, trained_in: int | None = None) -> None:
        await self.totals.keep(
            self.store,
            collected,
            # Not that in which it was asked for: a checkpoint has what was trained up to its step.
            step=step if trained_in is None else trained_in,
            algorithm=NAME,
            **self.generation.metadata,
            version=trained_in,  # a step of verl makes the version of its number
        )


def _train(
    row: TrainingRow, advantages: list[float | None], number: int, ledger: Ledger, estimator: str
) -> None:
    for n, value in enumerate(advantages):
        if value is None:
            ledger.exclude_row(row.only([n]), "rejected", "rollout correction rejected its tokens")
        elif not value:
            why = "its advantage is zero: it did as well as its siblings"
            ledger.exclude_row(row.only([n]), "zero_advantage", why)
    one = _weighed(row, advantages, estimator)
    if one.advantages:
        ledger.train(one.row, one.advantages, number)


def _weighed(row: TrainingRow, advantages: list[float | None], estimator: str) -> Weighed:
    """The calls of a row that have an advantage."""
    is_mean = estimator in OF_TOKENS  # verl says one number per call
    because = f"{estimator}, as verl has it" + (", the mean of its tokens" if is_mean else "")
    about: dict[str, Any] = {"because": because, "estimator": estimator, "is_mean": is_mean}
    given = {
        n: Advantage(value=value, group=row.credits[n].group, **about)
        for n, value in enumerate(advantages)
        if value
    }
    return Weighed(row.only(given), list(given.values()))
