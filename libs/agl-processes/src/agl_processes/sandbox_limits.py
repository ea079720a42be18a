"""How many sandboxes are made a minute, and what they may cost: of one run, on one machine."""

import asyncio
import hashlib
import json
import logging
import math
import os
import tempfile
import time
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from agl.emitter import emit_annotation
from agl.errors import ConfigError
from agl.runner.report import SandboxedAgentError
from agl.types import Failure, Rollout

logger = logging.getLogger("agl.sandbox")
FINISH_SECONDS, CLEANUP_SECONDS = 40.0, 60.0
"""How long a cancelled rollout waits for what is being made, and may clean up in all."""


@dataclass(frozen=True)
class SandboxLimits:
    """Limits that all runners of a run on this machine share; how many run at once is theirs.

    The options of environments say what they are. A sandbox whose runner is killed is not counted.
    """

    starts_per_minute: float | None = None
    price_per_hour: float = 0.0
    budget: float | None = None

    def __post_init__(self) -> None:
        if self.budget is not None and not self.price_per_hour:
            raise ConfigError(
                f"budget is {self.budget:g}, and price_per_hour is 0, so nothing would be counted. "
                "Give the price of a sandbox, or leave budget out"
            )

    @asynccontextmanager
    async def sandbox(self, rollout: Rollout) -> AsyncGenerator[None]:
        """Have a sandbox within the block, which begins when another one may be made.

        Raises:
            SandboxedAgentError: None may: the budget is spent, which is a failure of
                infrastructure and not of the agent.
        """
        while left := self._seconds_until_turn(rollout):  # noqa: ASYNC110 (of other processes)
            await asyncio.sleep(left)
        began = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - began
            cost = seconds / 3600 * self.price_per_hour
            emit_annotation({"sandbox.seconds": seconds, "sandbox.cost": cost})
            try:
                with _account(rollout) as account:
                    account["spent"] += cost
            except OSError as error:  # it costs no rollout its reward
                logger.warning("a sandbox that cost %g is not counted: %s", cost, error)

    def _seconds_until_turn(self, rollout: Rollout) -> float:
        """0 takes the turn, as of now: a loop that was blocked must not bunch what was planned."""
        with _account(rollout) as account:
            now = time.time()
            if self.budget is not None and account["spent"] >= self.budget:
                why = (
                    f"the sandboxes of this run have cost {account['spent']:.2f}, and their budget "
                    f"is {self.budget:.2f}. Raise budget, and go on with agl run --resume"
                )
                failure = Failure(boundary="resources", type="sandbox.budget_spent", message=why)
                raise SandboxedAgentError(failure)
            if (left := account["next_start"] - now) > 0:
                return left
            account["next_start"] = now + 60 / (self.starts_per_minute or math.inf)
        return 0.0


async def finish(work: Coroutine[Any, Any, Any]) -> Any:
    """Await what makes or deletes a sandbox; cancelled meanwhile, let it end first."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not (await asyncio.wait([task], timeout=FINISH_SECONDS))[0]:
            logger.warning("a sandbox may be left, as its provider took over %g s", FINISH_SECONDS)
        task.cancel()
        raise


@contextmanager
def _account(rollout: Rollout) -> Generator[dict[str, float]]:
    """What processes share of a run: a locked file, which is written whole."""
    folder = Path(tempfile.gettempdir()) / f"agl-sandboxes-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(f"{folder}, which has what sandboxes cost, is open to others. Remove it")
    run = str((rollout.metadata or {}).get("run", rollout.rollout_id))
    path = folder / hashlib.sha256(run.encode()).hexdigest()[:16]
    with FileLock(f"{path}.lock"):
        account = {"next_start": 0.0, "spent": 0.0}
        if path.exists():
            account = json.loads(path.read_text("utf-8"))
        yield account
        new = path.with_suffix(".new")
        new.write_text(json.dumps(account), "utf-8")
        new.replace(path)
