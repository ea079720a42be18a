"""One start of a run while it runs: its folder, sums and report, and what hooks ask of it."""

import logging
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, cast

from agl.errors import ConfigError
from agl.plugins.hooks import CALLED, HookCaller, HookManager
from agl.store.base import LightningStore
from agl.utils.json_values import json_of, parse_json
from agl.utils.text import full_name_of
from agl_learning.collect.collector import Collector
from agl_learning.collect.results import Collected
from agl_learning.collect.step_metrics import Totals
from agl_learning.reports.report import Report
from agl_learning.run.checkpoint import Progress
from agl_learning.run.folder import Generation
from agl_learning.run.records import Records
from agl_runs.secrets import redact

logger = logging.getLogger("agl.learning")


class Requests:
    """What was asked of one start of a run, and is still to be done.

    A hook with ``state_dict()`` and ``load_state_dict(state)`` has what the first gives, JSON
    values, in each checkpoint, and gets it back when a run goes on from there. Of what comes again
    after that checkpoint it hears again, as its state is from before; other hooks do not. A state
    is of a class, a dataclass's options but secrets, and the place among hooks alike in these.
    """

    def __init__(self, hooks: Sequence[Any], progress: Progress) -> None:
        self.saves = self.evaluates = False
        stateful = [hook for hook in hooks if hasattr(hook, "load_state_dict")]
        self._again = HookCaller(stateful, manager=HookManager())
        names: list[str] = []
        for hook in stateful:
            given = fields(hook) if is_dataclass(hook) else ()
            own = {one.name: getattr(hook, one.name) for one in given if one.init and one.repr}
            options = ", ".join(f"{option}={value!r}" for option, value in redact(own).items())
            names.append(full_name_of(cast("Any", type(hook))) + (f"({options})" if given else ""))
        self._hooks: dict[str, Any] = {
            f"{name}, {names[:n].count(name) + 1} of {names.count(name)}": stateful[n]
            for n, name in enumerate(names)
        }
        known = self._hooks.keys() & progress.hooks.keys()
        for name in known:
            try:
                self._hooks[name].load_state_dict(progress.hooks[name])
            except Exception as error:
                raise ConfigError(
                    f"hook {name!r} cannot load the state that the checkpoint has of it ({error!r})"
                    ". Mend its load_state_dict, or leave it out of the hooks"
                ) from error
        lost = sorted(progress.hooks.keys() - known)
        if lost:
            logger.warning(
                "the checkpoint has states of hooks that are not given, with these options and as "
                "often; they are not loaded: %s. Given are: %s",
                *("; ".join(lost), "; ".join(self._hooks) or "none"),
            )
        # Noted of a hook with a state, by which it is known whether that hook is there.
        self.ends = progress.ended if known and not lost else ""
        """Which hook asked the run to end, and why; "" while none has."""
        self._stays_ended = bool(self.ends)
        if self.ends:
            logger.warning("%s; leave that hook out to have more steps", self.ends)

    def end(self, step: int, why: str) -> None:
        """A hook asks the run to end after the step under way; ``step`` is the newest done."""
        if not self.ends:
            who = CALLED.get() or "the program"
            self.ends = f"after step {step}, {who} asked the run to end" + (why and f": {why}")
            logger.warning("%s", self.ends)
            kind = who.partition("#")[0]
            self._stays_ended = any(
                name.startswith((f"{kind}(", f"{kind},")) for name in self._hooks
            )

    async def tell_again(self, hook: str, **arguments: Any) -> None:
        """Call a hook of those with a state: what it tells of has come again."""
        await self._again.call(hook, **arguments)

    def progress(self) -> dict[str, Any]:
        """What a checkpoint notes, by the fields of ``Progress``."""
        states: dict[str, Any] = {}
        for name, hook in self._hooks.items():
            try:
                state = hook.state_dict()
                _check_same(state, back := parse_json(json_of(state, "it")))
                states[name] = back
            except Exception as error:
                logger.error("hook %r: its state is not in the checkpoint: %s", name, error)
        return {"hooks": states, "ended": self.ends if self._stays_ended else ""}


@dataclass(eq=False)
class Session:
    """One start of a run, anew or going on from ``progress``, which a checkpoint has."""

    algorithm: str
    """In the ledger and in rollouts' metadata."""
    store: LightningStore
    generation: Generation
    folder: Path
    progress: InitVar[Progress]
    gateway: Any
    collector: Collector
    report: Report
    hooks: InitVar[Sequence[object]]
    checkpoint: Path | None = None
    """The newest one."""
    begun_at: int = 0
    """How many of the steps another run has done, from whose checkpoint this one began."""

    def __post_init__(self, progress: Progress, hooks: Sequence[object]) -> None:
        self.steps_done = progress.step
        """Of the whole run; those before this start count."""
        self.taken = progress.taken
        """Tasks that the steps before this start took."""
        self.rewards = list(progress.rewards)
        """Mean per step, those of earlier starts too."""
        self.val_rewards = list(progress.val_rewards)
        """(step, mean) per evaluation."""
        self.totals = Totals(progress.totals)
        """Of the whole run."""
        self.records = Records(self.store, self.algorithm, self.generation)
        self.requests = Requests(hooks, progress)
        """Of hooks."""

    @property
    def run_id(self) -> str:
        """Of the run, the same in all its starts."""
        return self.generation.run

    def is_evaluated(self, step: int) -> bool:
        """Whether the model was evaluated after this step."""
        return any(done == step for done, _ in self.val_rewards)

    async def keep(self, collected: Collected, step: int, version: int) -> None:
        """Keep the ledger of a collection; ``version`` came out of it, or was evaluated."""
        about = {"algorithm": self.algorithm, **self.generation.metadata}
        await self.totals.keep(self.store, collected, step=step, version=version, **about)


def _check_same(state: Any, back: Any) -> None:
    """Refuse a state that JSON gives back as something else; lists for tuples are well."""
    if isinstance(state, dict) and [*cast("dict[Any, Any]", state)] == [*back]:
        for key, value in cast("dict[Any, Any]", state).items():
            _check_same(value, back[key])
    elif isinstance(state, list | tuple):
        for pair in zip(cast("Sequence[Any]", state), back, strict=True):
            _check_same(*pair)
    elif state != back:
        why = "Expected what JSON can hold: dicts with texts as keys, lists, texts, numbers, None"
        raise ValueError(f"{state!r:.80} would come back as {back!r:.80}. {why}")
