"""A hook that runs answers which must not be paid beside the training, and says when they are.

hooks:
  - {type: canaries, share: 0.01}
"""

import contextlib
import json
import logging
from collections.abc import Mapping
from itertools import cycle
from typing import Any

from agl.algorithm.base import Algorithm
from agl.errors import InvalidTransitionError
from agl.plugins.hooks import Hook
from agl.store.base import LightningStore
from agl.store.rules import IMPORTED as NEVER_LATEST
from agl.types import LLM, Rollout
from agl.utils.checks import check_numbers
from agl_inspect.exchange.reading import CANARY
from agl_inspect.graders.answers import WRONG, AnswerServer, solution_of
from agl_inspect.graders.audit import PAID_SHARE
from agl_records.ledger.documents import each_part
from agl_runs.records import canary_run
from agl_runs.rollouts import cancel_leftovers

logger = logging.getLogger("agl.inspect")

FILE = "canaries.jsonl"
MOST = 200
"""So many solutions, the newest, are in the answer that lists all of them."""
KINDS = [kind for kind in WRONG if kind != "random"]  # a guess may be right


class Canaries(Hook):
    """Has some tasks of the training answered by models that know nothing, apart from it.

    Nothing of these rollouts is trained, or in a metric: they have mode ``test`` and are of a run
    of their own, ``RUN/canaries``. Their rewards are in ``canaries.jsonl`` in the run's folder. A
    warning says when one earns more than a tenth of the way from the worst rollout of the training
    so far to the best. Resources that the algorithm was given, as the model of a judge, stay as
    they are, unless it trains none of its own. An algorithm without steps has no canaries.

    Args:
        share: How many of them for each rollout that was trained.
        solution: Where a task has its known solution; else ``solution`` or ``answer``.

    Raises:
        ConfigError: ``share`` is not above 0 and at most 1.
    """

    def __init__(self, share: float = 0.01, solution: str | None = None) -> None:
        check_numbers(type(self).__name__, above=0, most=1, share=share)
        self._share, self._solution = share, solution
        self._store: LightningStore | None = None

    async def on_run_start(self, algorithm: Algorithm, store: LightningStore) -> None:
        """Begin anew; what an earlier start of the run left is cancelled."""
        self._store, self._models = store, dict[str, LLM]()
        self._run = canary_run((algorithm.get_run() or ("",))[0])
        self._stack = contextlib.AsyncExitStack()
        self._solutions: list[str | None] = []
        self._kinds = cycle(KINDS)
        self._open: dict[str, tuple[str, int]] = {}
        """Rollout id -> the kind of its answer, and after which step it was queued."""
        self._due = 0.0
        self._trained: tuple[float, float] | None = None
        """The least and the most that a rollout of the training has earned so far."""
        self._warned: set[str] = set()
        self._has_steps = False
        await cancel_leftovers(store, self._run)

    async def on_step_end(
        self, algorithm: Algorithm, step: int, metrics: Mapping[str, Any]
    ) -> None:
        """Look at those that have ended, and queue the next."""
        run, self._has_steps = algorithm.get_run(), True
        if self._store is None or run is None:
            return
        parts = each_part(self._store, run=run[0], step=step, lost=False)
        ids = list(dict.fromkeys([one.rollout_id async for one in parts if one.mode == "train"]))
        trained = await self._store.query_rollouts(rollout_id_in=ids) if ids else []
        rewards = [one.reward for one in trained if one.reward is not None]
        seen = [*(self._trained or ()), *rewards]
        self._trained = (min(seen), max(seen)) if seen else None
        await self._look(algorithm)
        known = [*(solution_of(one.input, self._solution) for one in trained), *self._solutions]
        self._solutions[:] = list(dict.fromkeys(known))[:MOST]  # the server has this list
        self._due += self._share * len(trained)
        for one in trained[: int(self._due)]:
            self._due -= 1
            await self._queue(algorithm, one, step)

    async def on_run_end(self, algorithm: Algorithm, error: BaseException | None) -> None:
        """Look at those that have ended, and cancel the others."""
        if self._store is None:
            return
        try:
            if not self._has_steps and error is None:
                # Not of one that was stopped in its first step, or had all in an earlier start.
                run = (algorithm.get_run() or ("",))[0]
                newest = await self._store.query_rollouts(run=run, sort_order="desc", limit=MOST)
                if newest and not any("step" in (one.metadata or {}) for one in newest):
                    name = type(algorithm).__name__
                    logger.warning("%s has no steps, so that no canary ran beside it", name)
            await self._look(algorithm)
        finally:
            for rollout_id in self._open:
                with contextlib.suppress(InvalidTransitionError):  # it has ended meanwhile
                    await self._store.update_rollout(rollout_id, status="cancelled")
            self._store = None
            await self._stack.aclose()

    async def _queue(self, algorithm: Algorithm, of: Rollout, step: int) -> None:
        assert self._store is not None
        if not self._models:
            server = AnswerServer(self._solutions)
            answers = [(kind, 0) for kind in KINDS]
            served = server.served(algorithm, "agl-canary", answers)
            models = await self._stack.enter_async_context(served)
            self._models = dict(zip(KINDS, models, strict=True))
        kind = next(self._kinds)
        snapshot = await self._store.get_resources_by_id(of.resources_id or "")
        resources, given = snapshot.resources if snapshot else {}, algorithm.get_initial_resources()
        models = [name for name, one in resources.items() if isinstance(one, LLM)]
        own = [name for name in models if resources[name] != (given or {}).get(name)]
        resources = {**resources, **dict.fromkeys(own or models, self._models[kind])}
        resources_id = f"{NEVER_LATEST}canary-{of.resources_id}-{kind}"
        await self._store.update_resources(resources_id, resources)
        queued = await self._store.enqueue_rollout(
            of.input,
            mode="test",
            resources_id=resources_id,
            config=of.config,
            metadata={"run": self._run, CANARY: kind},
        )
        self._open[queued.rollout_id] = (kind, step)

    async def _look(self, algorithm: Algorithm) -> None:
        assert self._store is not None
        if not self._open:
            return
        rollouts = await self._store.query_rollouts(rollout_id_in=list(self._open))
        ended = [one for one in rollouts if one.end_time is not None]
        for one in ended:
            kind, step = self._open.pop(one.rollout_id)
            about = {"rollout_id": one.rollout_id, "answer": kind, "step": step}
            try:
                if (folder := algorithm.get_run_folder()) is not None:
                    with (folder / FILE).open("a") as file:
                        file.write(json.dumps({**about, "reward": one.reward}) + "\n")
            except OSError as error:  # a full disk, say: they go on all the same
                logger.warning("%s was not written: %s", FILE, error)
            if one.reward is None or self._trained is None or kind in self._warned:
                continue
            least, most = self._trained
            # If all earned the same, nothing seen says what no answer earns: it is 0 then.
            floor = least if least < most else min(most, 0.0)
            if one.reward > floor + PAID_SHARE * (most - floor):
                self._warned.add(kind)
                logger.warning(
                    "step %d: a model that %s earned %.4g, and the best rollout of the training so "
                    "far %.4g: the training learns what the grader pays for. Look at agl show %s; "
                    "agl doctor --graders tries this before a run",
                    step, WRONG[kind], one.reward, most, one.rollout_id,
                )  # fmt: skip
