"""What a run has done, in the store, so that a run which was killed goes on where it was.

A run is a function of its options, its datasets, its random seed, the answers of the models and
the rewards. Rewards are rollouts with durable keys; everything else that cost something or was
decided is an entry: a document with its name and the answer. Running again reads instead of
asking.
"""

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agl.errors import ConfigError, ConflictError, InvalidTransitionError, NotSupportedError
from agl.store.base import LightningStore
from agl.types import Document
from agl.utils.text import shorten
from agl_runs.folders import is_alive
from agl_runs.store import RUN_ID, get_run
from agl_views.runs.prompt_runs import PromptRuns


@dataclass
class StoreJournal:
    """The entries of one run."""

    store: LightningStore
    run_name: str
    """Whose; several runs may share a store."""
    algorithm: str
    """Stands in every entry."""
    run_id: str | None = None
    """Of the trainer's run, with which the entries are deleted."""

    async def cancel_leftovers(self, run_id: str | None) -> None:
        """Cancel the evaluations that an earlier start left queued or under way.

        They would be claimed before anything else, with an address that answers no longer.

        Args:
            run_id: Of the trainer's run, of which no other start lives; None outside of a trainer.

        Raises:
            ConfigError: A trainer that lives has them.
        """
        for rollout in await self.store.query_rollouts(
            status_in=["queuing", "requeuing", "preparing", "running"]
        ):
            metadata = rollout.metadata or {}
            of_it = metadata.get(PromptRuns.FIELD)
            ours = self.metadata(PromptRuns.EVALUATION)[PromptRuns.FIELD]
            if not isinstance(of_it, dict) or not ours.items() <= of_it.items():
                continue
            if (owner := metadata.get("run")) != run_id:
                await self._check_dead(owner)
            with suppress(InvalidTransitionError):  # it has ended meanwhile
                await self.store.update_rollout(rollout.rollout_id, status="cancelled")

    async def _check_dead(self, run_id: str | None) -> None:
        with suppress(NotSupportedError):  # a store that keeps no runs
            run = None if run_id is None else await get_run(self.store, run_id)
            if run is not None and is_alive(run):
                raise ConfigError(
                    f"run {self.run_name!r} of this store is in use by run {run_id!r}, as far as "
                    "can be told from here. Wait for its end, or give another run_name; if it is "
                    f"dead, go on with it: Trainer(run={run_id!r}, resume=True)"
                )

    def metadata(self, kind: str, **values: Any) -> dict[str, Any]:
        """Metadata of a rollout of this run; ``values`` say what it is for."""
        return {PromptRuns.FIELD: {**self._about, "kind": kind, **values}}

    @property
    def _about(self) -> dict[str, Any]:
        return {"run": self.run_name, "algorithm": self.algorithm}

    def key(self, *parts: object) -> str:
        """A durable key of this run."""
        return "/".join(str(part) for part in (self.algorithm, self.run_name, *parts))

    def resources_id(self, name: str) -> str:
        """Id of a snapshot of this run; ids have no slashes."""
        return self.key(name).replace("/", "-")

    async def once(
        self, kind: str, name: str, ask: Callable[[], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        """The recorded answer, or that of ``ask``, which is recorded.

        What ``ask`` raises is not recorded; the next run asks again.
        """
        key = self.key(kind, name)
        for answer in await self._recorded(key):
            return answer
        entry = {**self._about, "kind": kind, "name": name, RUN_ID: self.run_id}
        entry |= {"answer": await ask(), "time": time.time()}
        try:
            await self.store.put_documents(
                [Document(kind=PromptRuns.ENTRIES, key=key, body=entry, expect=0)]
            )
        except ConflictError:  # its answer had been lost
            return (await self._recorded(key))[0]
        return entry["answer"]

    async def _recorded(self, key: str) -> list[dict[str, Any]]:
        found = await self.store.query_documents(PromptRuns.ENTRIES, key_in=[key])
        return [one.body["answer"] for one in found]

    async def note(self, kind: str, name: str, value: dict[str, Any]) -> dict[str, Any]:
        """Record a value; the answer is what was recorded first."""

        async def given() -> dict[str, Any]:
            return value

        return await self.once(kind, name, given)

    async def begin(self, options: dict[str, Any]) -> None:
        """Record what the run depends on, or compare it with what was recorded.

        Raises:
            ConfigError: The run was begun with something else.
        """
        recorded = await self.note("start", "options", options)
        for name, value in options.items():
            if recorded.get(name) != value:
                raise ConfigError(
                    f"run {self.run_name!r} of this store was begun with another {name}: "
                    f"{shorten(repr(recorded.get(name)))} then, {shorten(repr(value))} now. "
                    "Continue it with what it had, or give another run_name"
                )
