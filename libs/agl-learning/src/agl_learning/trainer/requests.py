"""What hooks ask of a run, and what they keep in its checkpoints."""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agl.plugins.hooks import HookCaller, HookManager

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
        self._hooks: dict[str, Any] = {}
        seen = Counter[str]()
        for hook in hooks:
            name = f"{type(hook).__module__}.{type(hook).__qualname__}"
            seen[name] += 1
            if hasattr(hook, "state_dict") and hasattr(hook, "load_state_dict"):
                self._hooks[f"{name}#{seen[name]}" if seen[name] > 1 else name] = hook
        known = self._hooks.keys() & progress.hooks.keys()
        for name in known:
            self._hooks[name].load_state_dict(progress.hooks[name])
        self._again = HookCaller([*self._hooks.values()], manager=HookManager())
        if lost := sorted(progress.hooks.keys() - known):
            logger.warning("the checkpoint has states of hooks that are not given: %s", lost)
        self.ends = progress.is_ended and not lost
        if self.ends:
            logger.warning("a hook ended this run before; leave that hook out to have more steps")

    async def tell_again(self, hook: str, **arguments: Any) -> None:
        """Call a hook of those with a state: what it tells of has come again."""
        await self._again.call(hook, **arguments)

    def progress(self) -> dict[str, Any]:
        """What a checkpoint notes, by the fields of ``Progress``."""
        hooks = {name: hook.state_dict() for name, hook in self._hooks.items()}
        return {"hooks": hooks, "is_ended": self.ends}
