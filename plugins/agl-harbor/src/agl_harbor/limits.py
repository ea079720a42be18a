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

from agl.errors import RunError


class SpentError(RunError):
    """The sandboxes of a run have cost what they may."""


@dataclass(frozen=True)
class Limits:
    """Limits that all runners of a run on this machine share; how many run at once is theirs.

    Args:
        starts_per_minute: Most sandboxes that are made in a minute; None for no limit.
        price_per_hour: Of one sandbox.
        budget: What all sandboxes of the run may cost. Those that run when it is reached end in
            order; no more are made.
    """

    starts_per_minute: float | None = None
    price_per_hour: float = 0.0
    budget: float | None = None

    async def wait_for_turn(self, run: str) -> None:
        """Return when another sandbox may be made.

        Raises:
            SpentError: None may: the budget is spent.
        """
        with _Account(run) as account:
            if self.budget is not None and account.spent >= self.budget:
                raise SpentError(
                    f"the sandboxes of this run have cost {account.spent:.2f}, and their budget is "
                    f"{self.budget:.2f}. Raise budget, and go on with agl run --resume"
                )
            start = max(time.time(), account.next_start)
            if self.starts_per_minute is not None:
                account.next_start = start + 60 / self.starts_per_minute
        await asyncio.sleep(start - time.time())

    def spend(self, run: str, seconds: float) -> float:
        """Count what a sandbox has cost that ran for so long."""
        cost = seconds / 3600 * self.price_per_hour
        if cost:
            with _Account(run) as account:
                account.spent += cost
        return cost


class _Account:
    """What processes share of a run: a locked file."""

    def __init__(self, run: str) -> None:
        folder = Path(tempfile.gettempdir()) / f"agl-harbor-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        self._path = folder / hashlib.sha256(run.encode()).hexdigest()[:16]
        self._lock = FileLock(f"{self._path}.lock")
        self.next_start = self.spent = 0.0

    def __enter__(self) -> "_Account":
        self._lock.acquire()
        if self._path.exists():
            self.next_start, self.spent = json.loads(self._path.read_text("utf-8"))
        return self

    def __exit__(self, *error: object) -> None:
        self._path.write_text(json.dumps([self.next_start, self.spent]), "utf-8")
        self._lock.release()
