"""The status machine: what may follow what, and what follows from it.

Pure functions over the types; every store applies them and none restates them.

**Attempts.** An attempt is *current* while it is the newest of its rollout and the rollout has not
ended; only a current attempt moves its rollout.

    from            to
    ------------    --------------------------------------------------------------
    preparing       running, succeeded, failed, timeout, unresponsive
    running         succeeded, failed, timeout, unresponsive
    unresponsive    succeeded, failed, timeout; running while it is current
    succeeded, failed, timeout                     nothing: they are final

``unresponsive`` is a guess of the watchdog, so facts replace it: a result that comes after all is
recorded, always on the attempt and, while it is current, on the rollout too; a late span or
heartbeat revives it (back to ``running``) while it is current. ``succeeded``, ``failed``,
``timeout`` and ``unresponsive`` set ``end_time``; a revival clears it, and the failure with it.

**Rollouts.**

    from            to
    ------------    --------------------------------------------------------------
    queuing         preparing (claimed), succeeded, failed, cancelled
    preparing       running, requeuing, succeeded, failed, cancelled
    running         preparing (another attempt), requeuing, succeeded, failed, cancelled
    requeuing       preparing (claimed), running (revived), succeeded, failed, cancelled
    succeeded, failed, cancelled                   nothing: they are final

The current attempt moves its rollout to the status of the same name; after ``failed``, ``timeout``
and ``unresponsive`` it goes to ``requeuing`` when ``RolloutConfig.retry_condition`` has the status
and ``max_attempts`` allows another one, else to ``failed``, or to ``cancelled`` if the boundary of
the attempt's failure is that. By hand (``update_rollout``) a rollout
can only be ended or put back into the queue; the other statuses follow from its attempts.

A rollout that was cancelled keeps its open attempt: the attempt runs on until its own result or
deadline, which is recorded on it and no longer touches the rollout.

**Workers.** ``busy`` while an attempt of theirs is open, with the newest such attempt as the
current one; when the last one ends, ``idle`` after a result, ``unknown`` after ``timeout`` or
``unresponsive``; ``idle`` when they look for work, find none and have none.
"""

from typing import Any, Final, get_args

from agl.errors import InvalidTransitionError
from agl.types import Attempt, AttemptStatus, Failure, Rollout, RolloutConfig, RolloutStatus, Worker

QUEUED: Final[frozenset[RolloutStatus]] = frozenset({"queuing", "requeuing"})
ENDED: Final[frozenset[RolloutStatus]] = frozenset({"succeeded", "failed", "cancelled"})
OPEN: Final[frozenset[AttemptStatus]] = frozenset({"preparing", "running"})
"""Statuses of an attempt that has not ended; only these have deadlines."""

ROLLOUT_NEXT: Final[dict[RolloutStatus, frozenset[RolloutStatus]]] = {
    "queuing": frozenset({*ENDED, "preparing"}),
    "preparing": frozenset({*ENDED, "running", "requeuing"}),
    "running": frozenset({*ENDED, "preparing", "requeuing"}),
    "requeuing": frozenset({*ENDED, "preparing", "running"}),
    "succeeded": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}
BY_HAND: Final[frozenset[RolloutStatus]] = frozenset({*ENDED, "requeuing"})

FINAL: Final[frozenset[AttemptStatus]] = frozenset({"succeeded", "failed", "timeout"})
"""Statuses of an attempt that has ended for good; what it writes from then on is late."""
ATTEMPT_NEXT: Final[dict[AttemptStatus, frozenset[AttemptStatus]]] = {
    "preparing": frozenset({*FINAL, "running", "unresponsive"}),
    "running": frozenset({*FINAL, "unresponsive"}),
    "unresponsive": frozenset({*FINAL, "running"}),
    "succeeded": frozenset(),
    "failed": frozenset(),
    "timeout": frozenset(),
}

IMPORTED: Final = "imported/"
"""Begins the ids of snapshots of resources that came from elsewhere; none is ever the latest."""


# --- rollouts


def move_rollout(rollout: Rollout, status: RolloutStatus, now: float) -> Rollout:
    """The rollout in its next status, or an ``InvalidTransitionError`` if the table forbids it."""
    if status == rollout.status:
        return rollout
    if status not in ROLLOUT_NEXT[rollout.status]:
        raise _refused(f"rollout {rollout.rollout_id!r}", rollout.status, status, ROLLOUT_NEXT)
    changes: dict[str, Any] = {"status": status}
    if status in ENDED:
        changes["end_time"] = now
    return rollout.changed(**changes)


def move_rollout_by_hand(rollout: Rollout, status: RolloutStatus, now: float) -> Rollout:
    """The same for ``update_rollout``, which sets no status that follows from attempts."""
    if status in ROLLOUT_NEXT[rollout.status] and status not in BY_HAND:
        raise InvalidTransitionError(
            f"rollout {rollout.rollout_id!r}: cannot go from {rollout.status!r} to {status!r} by "
            f"hand; that status follows from its attempts. Expected one of {_listed(BY_HAND)}; "
            "otherwise use start_attempt or update_attempt"
        )
    return move_rollout(rollout, status, now)


def rollout_after(rollout: Rollout, attempt: Attempt, now: float) -> Rollout:
    """What the new status of the current attempt makes of its rollout; here retries are decided."""
    if attempt.status == "succeeded":
        rollout = rollout.changed(reward=attempt.reward)
    if attempt.status in ("preparing", "running", "succeeded"):
        return move_rollout(rollout, attempt.status, now)
    config = rollout.config
    retry = attempt.status in config.retry_condition and attempt.sequence_id < config.max_attempts
    is_cancelled = attempt.error is not None and attempt.error.boundary == "cancelled"
    ended = "cancelled" if is_cancelled else "failed"
    return move_rollout(rollout, "requeuing" if retry else ended, now)


# --- attempts


def is_current(rollout: Rollout, attempt: Attempt, latest: Attempt) -> bool:
    """Whether what happens to ``attempt`` moves ``rollout``."""
    return attempt.attempt_id == latest.attempt_id and rollout.status not in ENDED


def move_attempt(
    attempt: Attempt,
    status: AttemptStatus,
    now: float,
    *,
    current: bool,
    error: Failure | None = None,
) -> Attempt:
    """The attempt in its next status, as ``move_rollout``; see ``is_current`` for ``current``."""
    if status == attempt.status:
        return attempt
    what = check_step(attempt, status)
    if attempt.status == "unresponsive" and status == "running" and not current:
        raise InvalidTransitionError(
            f"{what}: cannot go from 'unresponsive' to 'running'; its rollout has ended or has a "
            "newer attempt, so only a result is still recorded"
        )
    # An attempt that no longer moves its rollout keeps its failure: the rollout failed for it.
    error = error if current else error or attempt.error
    changes: dict[str, Any] = {"status": status, "error": error}
    changes["end_time"] = None if status in OPEN else now
    return attempt.changed(**changes)


def check_step(attempt: Attempt, status: AttemptStatus) -> str:
    """Refuse a step that the table does not have; returns what messages call the attempt."""
    what = f"attempt {attempt.attempt_id!r} of rollout {attempt.rollout_id!r}"
    if status != attempt.status and status not in ATTEMPT_NEXT[attempt.status]:
        raise _refused(what, attempt.status, status, ATTEMPT_NEXT)
    return what


def sign_of_life(attempt: Attempt, time: float, *, current: bool, span: bool) -> Attempt:
    """The attempt after a span or heartbeat of ``time``; one that has ended is left as it is."""
    if attempt.status in OPEN or (attempt.status == "unresponsive" and current):
        if attempt.status == "unresponsive" or (span and attempt.status == "preparing"):
            attempt = move_attempt(attempt, "running", time, current=current)
        return attempt.changed(last_heartbeat_time=time)
    return attempt


def deadline(attempt: Attempt, config: RolloutConfig) -> float | None:
    """When ``overdue`` may first say something about the attempt; None for never."""
    if attempt.status not in OPEN:
        return None
    limits: list[float] = []
    if config.timeout_seconds is not None:
        limits.append(attempt.start_time + config.timeout_seconds)
    if config.unresponsive_seconds is not None:
        limits.append(_last_sign(attempt) + config.unresponsive_seconds)
    return min(limits, default=None)


def overdue(
    attempt: Attempt, config: RolloutConfig, now: float, listening_since: float = 0.0
) -> tuple[AttemptStatus, Failure] | None:
    """The status and failure that the watchdog gives to an open attempt, or None.

    Args:
        listening_since: When the store was opened. While it was away nobody could give a sign, so
            silence counts from then on; ``timeout_seconds`` holds whatever happens.
    """
    if attempt.status not in OPEN:
        return None
    limit = config.timeout_seconds
    if limit is not None and now > attempt.start_time + limit:
        return "timeout", Failure(
            boundary="timeout", type="timeout", message=f"ran longer than timeout_seconds={limit:g}"
        )
    limit = config.unresponsive_seconds
    if limit is not None and now > max(_last_sign(attempt), listening_since) + limit:
        return "unresponsive", Failure(
            boundary="lost",
            type="unresponsive",
            message=f"no span or heartbeat for longer than unresponsive_seconds={limit:g}",
        )
    return None


REQUEUED_BY_HAND: Final = Failure(
    boundary="cancelled", type="requeued", message="its rollout was put back into the queue"
)
"""Failure of the attempt that was current when ``update_rollout`` requeued its rollout."""

CLAIM_ABANDONED: Final = Failure(
    boundary="cancelled",
    type="claim_abandoned",
    message="the call that claimed it was cancelled before it had the answer",
)


def _last_sign(attempt: Attempt) -> float:
    heartbeat = attempt.last_heartbeat_time
    return attempt.start_time if heartbeat is None else heartbeat


# --- workers


def worker_found_nothing(worker: Worker, now: float) -> Worker:
    """After an empty claim; one that still has an open attempt stays busy."""
    changes: dict[str, Any] = {"last_dequeue_time": now}
    if worker.status == "unknown":
        changes |= {"status": "idle", "last_idle_time": now}
    return worker.changed(**changes)


def worker_busy(worker: Worker, attempt: Attempt, now: float, *, claimed: bool = False) -> Worker:
    """When an attempt of the worker begins or is revived."""
    changes: dict[str, Any] = {
        "status": "busy",
        "last_busy_time": now,
        "current_rollout_id": attempt.rollout_id,
        "current_attempt_id": attempt.attempt_id,
    }
    if claimed:
        changes["last_dequeue_time"] = now
    return worker.changed(**changes)


def worker_after(worker: Worker, ended: AttemptStatus, other: Attempt | None, now: float) -> Worker:
    """When an attempt has ended so, and ``other`` is the worker's newest attempt that goes on."""
    changes: dict[str, Any] = {
        "current_rollout_id": other and other.rollout_id,
        "current_attempt_id": other and other.attempt_id,
    }
    if other is None and ended in ("timeout", "unresponsive"):
        changes["status"] = "unknown"
    elif other is None:
        changes |= {"status": "idle", "last_idle_time": now}
    return worker.changed(**changes)


# --- messages


def _refused(what: str, old: str, new: str, table: dict[Any, Any]) -> InvalidTransitionError:
    if new not in table:
        return InvalidTransitionError(
            f"{what}: unknown status {new!r}; expected one of {_listed(table)}"
        )
    allowed: frozenset[str] = table[old]
    reason = f"{old!r} is final" if not allowed else f"it can go to {_listed(allowed)}"
    return InvalidTransitionError(f"{what}: cannot go from {old!r} to {new!r}; {reason}")


def _listed(statuses: Any) -> str:
    order = (*get_args(RolloutStatus), *get_args(AttemptStatus))
    return ", ".join(repr(status) for status in dict.fromkeys(order) if status in statuses)
