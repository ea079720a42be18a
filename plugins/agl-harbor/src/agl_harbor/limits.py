"""How many sandboxes are made a minute, and what they may cost: of one run, on one machine."""

import asyncio
import hashlib
import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from agl.errors import ConfigError
from agl.runner.report import SandboxedAgentError
from agl.types import Failure


@dataclass(frozen=True)
class Limits:
    """Limits that all runners of a run on this machine share; how many run at once is theirs.

    Args:
        starts_per_minute: Most sandboxes that are made in a minute; None for no limit.
        price_per_hour: Of one sandbox.
        budget: What all sandboxes of the run may cost. Those that run when it is reached end in
            order; no more are made.

    Raises:
        ConfigError: There is a budget and no price, so that it would limit nothing.
    """

    starts_per_minute: float | None = None
    price_per_hour: float = 0.0
    budget: float | None = None

    def __post_init__(self) -> None:
        if self.budget is not None and not self.price_per_hour:
            raise ConfigError(
                f"environment 'harbor': budget is {self.budget:g}, and price_per_hour is 0, so "
                "nothing would be counted. Give the price of a sandbox, or leave budget out"
            )

    async def wait_for_turn(self, run: str) -> None:
        """Return when another sandbox may be made.

        Raises:
            SandboxedAgentError: None may: the budget is spent, which is a failure of
                infrastructure and not of the agent.
        """
        self._check_budget(run)
        if self.starts_per_minute is None:
            return
        interval = 60 / self.starts_per_minute
        with _Account(run) as account:
            start = max(time.time(), account.next_start)
            account.next_start = start + interval
        try:
            await asyncio.sleep(start - time.time())
            self._check_budget(run)
        except BaseException:  # its turn is another's
            with _Account(run) as account:
                account.next_start -= interval
            raise

    def _check_budget(self, run: str) -> None:
        if self.budget is None:
            return
        with _Account(run) as account:
            spent = account.spent
        if spent >= self.budget:
            message = (
                f"the sandboxes of this run have cost {spent:.2f}, and their budget is "
                f"{self.budget:.2f}. Raise budget, and go on with agl run --resume"
            )
            failure = Failure(boundary="resources", type="harbor.budget_spent", message=message)
            raise SandboxedAgentError(failure)

    def spend(self, run: str, seconds: float) -> float:
        """Count what a sandbox has cost that ran for so long."""
        cost = seconds / 3600 * self.price_per_hour
        if cost:
            with _Account(run) as account:
                account.spent += cost
        return cost


class _Account:
    """What processes share of a run: a locked file, which is written whole."""

    def __init__(self, run: str) -> None:
        folder = Path(tempfile.gettempdir()) / f"agl-harbor-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.stat()
        if found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise ConfigError(
                f"environment 'harbor': {str(folder)!r}, which has what sandboxes cost, is open to "
                "others. Remove it"
            )
        self._path = folder / hashlib.sha256(run.encode()).hexdigest()[:16]
        self._lock = FileLock(f"{self._path}.lock")
        self.next_start = self.spent = 0.0

    def __enter__(self) -> "_Account":
        self._lock.acquire()
        if self._path.exists():
            self.next_start, self.spent = json.loads(self._path.read_text("utf-8"))
        return self

    def __exit__(self, *error: object) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps([self.next_start, self.spent]), "utf-8")
        new.replace(self._path)
        self._lock.release()
