"""What hooks ask of a run, and what they keep in its checkpoints."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agl.plugins.hooks import HookCaller, HookManager
from agl.utils.json_values import json_of, parse_json

if TYPE_CHECKING:
    from agl_learning.run.checkpoint import Progress

logger = logging.getLogger("agl.learning")


class Requests:
    """What was asked of one start of a run, and is still to be done.

    A hook with ``state_dict()`` and ``load_state_dict(state)`` has what the first gives, JSON
    values, in each checkpoint, and gets it back when a run goes on from there. Of what comes again
    after that checkpoint it hears again, as its state is from before; other hooks do not.

    Args:
        hooks: Objects given to the trainer.
        progress: Of the checkpoint that the start goes on from.
    """

    def __init__(self, hooks: Sequence[object], progress: "Progress") -> None:
        self.saves = self.evaluates = False
        stateful = [hook for hook in hooks if hasattr(hook, "load_state_dict")]
        self._again = HookCaller(stateful, manager=HookManager())
        self._hooks: dict[str, Any] = dict(self._again.manager.list_name_plugin())
        known = self._hooks.keys() & progress.hooks.keys()
        for name in known:
            self._hooks[name].load_state_dict(progress.hooks[name])
        lost = sorted(progress.hooks.keys() - known)
        if lost:
            logger.warning("the checkpoint has states of hooks that are not given: %s", lost)
        # Without any state, nobody would say whether the hook is there that ended it.
        self.ends = progress.is_ended and bool(known) and not lost
        if self.ends:
            logger.warning("a hook ended this run before; leave that hook out to have more steps")

    async def tell_again(self, hook: str, **arguments: Any) -> None:
        """Call a hook of those with a state: what it tells of has come again."""
        await self._again.call(hook, **arguments)

    def progress(self) -> dict[str, Any]:
        """What a checkpoint notes, by the fields of ``Progress``."""
        states: dict[str, Any] = {}
        for name, hook in self._hooks.items():
            try:
                states[name] = parse_json(json_of(hook.state_dict(), "it"))
            except Exception as error:
                logger.error("hook %r: its state is not in the checkpoint: %s", name, error)
        return {"hooks": states, "is_ended": self.ends}
