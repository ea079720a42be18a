"""Every operation of a store, once: pure functions of (tables, now, arguments).

``Tables`` (``store/tables.py``) is what a store must be able to keep and find; it knows no rules.
An operation reads what it needs, refuses before it writes, and notes in ``tables.effects`` what
others wait for. A store runs each operation alone (under a lock, or in a transaction) and then
acts on the effects.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Literal, TypeVar, cast

from agl.errors import UnknownRecordError
from agl.store import rules
from agl.store.base import AttemptEnd, Turn
from agl.store.packed import PackedSpan, check_span
from agl.store.queries import Query
from agl.store.tables import AnySpan, StoredAttempt, Tables
from agl.types import (
    UNASSIGNED,
    Attempt,
    AttemptedRollout,
    EnqueueRolloutRequest,
    Failure,
    LedgerPart,
    NamedResources,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    Worker,
)
from agl.types.records import Record

R = TypeVar("R", bound=Record)

# --- putting work in, taking it out


def enqueue(tables: Tables, now: float, requests: Sequence[EnqueueRolloutRequest]) -> list[Rollout]:
    """Queue tasks; see ``EnqueueRolloutRequest.key``."""
    resources_ids = [_resources_id(tables, request.resources_id) for request in requests]
    rollouts: list[Rollout] = []
    for request, resources_id in zip(requests, resources_ids, strict=True):
        known = None if request.key is None else tables.rollout_id_of_key(request.key)
        if known is not None:
            rollouts += tables.views([known])
            continue
        rollout = _new_rollout(tables, now, request, resources_id, "queuing")
        tables.insert_rollout(rollout, request.key)
        tables.effects.queued += 1
        rollouts.append(rollout)
    return rollouts


def claim(
    tables: Tables, now: float, limit: int, worker_id: str | None, key: str | None = None
) -> list[AttemptedRollout]:
    """Take rollouts out of the queue, each with a new attempt."""
    claimed = _made_by(tables, key)
    if claimed:
        return claimed
    while len(claimed) < limit and (rollout := tables.first_queued()) is not None:
        claimed.append(_begin_attempt(tables, now, rollout, worker_id, key))
    if worker_id is not None:
        worker = _worker(tables, worker_id)
        tables.save_worker(
            rules.worker_busy(worker, claimed[-1].attempt, now, claimed=True)
            if claimed
            else rules.worker_found_nothing(worker, now)
        )
    return claimed


def found_nothing(tables: Tables, now: float, worker_ids: dict[str, float]) -> None:
    """Note empty claims of before, worker id -> time; for stores that write them later."""
    for worker_id, time in worker_ids.items():
        tables.save_worker(rules.worker_found_nothing(_worker(tables, worker_id), time))


def return_claims(tables: Tables, now: float, claimed: Sequence[AttemptedRollout]) -> None:
    """Put back what was claimed by a call that nobody waits for any more."""
    for view in claimed:
        if tables.latest_attempt(view.rollout_id) == view.attempt:
            _requeue(tables, now, view.rollout_id, rules.CLAIM_ABANDONED)


def start_rollout(
    tables: Tables, now: float, *, worker_id: str | None, **task: Any
) -> AttemptedRollout:
    """Make a rollout and its first attempt; see ``EnqueueRolloutRequest``."""
    request = EnqueueRolloutRequest(**task)
    known = None if request.key is None else tables.rollout_id_of_key(request.key)
    if known is not None:
        latest = tables.latest_attempt(known)
        if latest is None:  # queued under this key
            return start_attempt(tables, now, known, worker_id)
        return attempted(detached_record(_rollout(tables, known)), detached_record(latest))
    resources_id = _resources_id(tables, request.resources_id)
    rollout = _new_rollout(tables, now, request, resources_id, "preparing")
    tables.insert_rollout(rollout, request.key)
    return _begin_attempt_of_worker(tables, now, rollout, worker_id)


def start_attempt(
    tables: Tables, now: float, rollout_id: str, worker_id: str | None, key: str | None = None
) -> AttemptedRollout:
    """Make another attempt."""
    for view in _made_by(tables, key):
        if view.rollout_id == rollout_id:
            return view
    rollout = _rollout(tables, rollout_id)
    rules.move_rollout(rollout, "preparing", now)  # refuses before anything is written
    return _begin_attempt_of_worker(tables, now, rollout, worker_id, key)


# --- spans


def add_spans(tables: Tables, now: float, spans: Sequence[AnySpan]) -> list[AnySpan]:
    """Store spans; see the contract for numbers and duplicates."""
    groups: dict[tuple[str, str], list[int]] = {}
    _check(spans)
    for index, span in enumerate(spans):
        groups.setdefault((span.rollout_id, span.attempt_id), []).append(index)
    found = {key: _attempt(tables, *key) for key in groups}
    added: dict[int, AnySpan] = {}
    for key, indexes in groups.items():
        rollout, stored = found[key]
        new, next_sequence = _insert_new(tables, stored, [spans[index] for index in indexes])
        by_id = {span.span_id: span for span in new}
        for index in indexes:
            if (span := by_id.pop(spans[index].span_id, None)) is not None:
                added[index] = span
        current = _is_current(tables, rollout, stored.attempt)
        attempt = rules.sign_of_life(stored.attempt, now, current=current, span=True)
        _save_attempt(tables, now, rollout, stored, attempt, current, next_sequence)
    return [added[index] for index in sorted(added)]


def _check(spans: Sequence[AnySpan]) -> None:
    for span in spans:
        if not isinstance(span, PackedSpan):  # those were checked when they were packed
            check_span(span)


def _insert_new(
    tables: Tables, stored: StoredAttempt, spans: Sequence[AnySpan]
) -> tuple[list[AnySpan], int]:
    """Keep those of an attempt's spans that are new; they, and the number after theirs."""
    next_sequence = stored.next_sequence
    known: set[str] = set()
    if next_sequence > 1:  # else it has none
        known = tables.known_spans(stored.attempt.attempt_id, [span.span_id for span in spans])
    new: list[AnySpan] = []
    numbers_taken = False
    for span in spans:
        span_id, number = span.span_id, span.sequence_id
        if span_id in known:
            continue
        known.add(span_id)
        if number == UNASSIGNED or number >= next_sequence:
            if not numbers_taken:
                next_sequence = tables.take_numbers(stored).next_sequence
                numbers_taken = True
            if number == UNASSIGNED:
                span = _numbered(span, next_sequence)
                next_sequence += 1
            else:
                next_sequence = max(next_sequence, number + 1)
        new.append(span)
    tables.insert_spans(stored.attempt.attempt_id, new)
    return new, next_sequence


def _numbered(span: AnySpan, number: int) -> AnySpan:
    if isinstance(span, PackedSpan):
        return PackedSpan(span[0], span[1], number, *span[3:])  # a third of _replace's time
    return span.model_copy(update={"sequence_id": number})


def reserve_sequence_ids(tables: Tables, now: float, pairs: Sequence[tuple[str, str]]) -> list[int]:
    """Give out span numbers."""
    found = {pair: _attempt(tables, *pair) for pair in pairs}
    following = {
        pair: tables.take_numbers(stored).next_sequence for pair, (_, stored) in found.items()
    }
    numbers: list[int] = []
    for pair in pairs:
        numbers.append(following[pair])
        following[pair] += 1
    for pair, (rollout, stored) in found.items():
        tables.save_numbers(
            StoredAttempt(stored.attempt, following[pair]),
            rules.deadline(stored.attempt, rollout.config),
        )
    return numbers


# --- changing work


def update_rollout(tables: Tables, now: float, rollout_id: str, changes: dict[str, Any]) -> Rollout:
    """Change the fields of a rollout."""
    rollout = _rollout(tables, rollout_id)
    changes = _own(changes)
    status = changes.pop("status", rollout.status)
    if changes.get("resources_id") is not None:
        _resources_id(tables, changes["resources_id"])
    edited = Rollout.model_validate({**rollout.__dict__, **changes}) if changes else rollout
    moved = rules.move_rollout_by_hand(edited, status, now)
    if changes:
        tables.edit_rollout(edited)
    if "config" in changes and (latest := tables.latest_attempt(rollout_id)) is not None:
        _, stored = _attempt(tables, rollout_id, latest.attempt_id)
        _save_deadline(tables, stored, edited.config)
    if status == "requeuing" and rollout.status != "requeuing":
        return detached_record(_requeue(tables, now, rollout_id, rules.REQUEUED_BY_HAND))
    _move(tables, edited, moved)
    return detached_record(moved)


def update_attempt(
    tables: Tables, now: float, rollout_id: str, attempt_id: str, changes: dict[str, Any]
) -> Attempt:
    """Change the fields of an attempt, and what follows from that."""
    if attempt_id == "latest":
        latest = tables.latest_attempt(rollout_id)
        attempt_id = latest.attempt_id if latest is not None else attempt_id
    rollout, stored = _attempt(tables, rollout_id, attempt_id)
    old = stored.attempt
    changes = _own(changes)
    status = changes.pop("status", None)
    if status == old.status and status not in rules.OPEN:
        return detached_record(old)
    current = _is_current(tables, rollout, old)
    attempt = old
    if changes.pop("last_heartbeat_time", None) is not None:
        # Whatever time it carries, which is that of another machine's clock.
        attempt = rules.sign_of_life(attempt, now, current=current, span=False)
    if status is not None and status != old.status:
        error: Failure | None = changes.pop("error", None)
        attempt = rules.move_attempt(attempt, status, now, current=current, error=error)
    if changes:
        attempt = Attempt.model_validate({**attempt.__dict__, **changes})
    _save_attempt(tables, now, rollout, stored, attempt, current, stored.next_sequence)
    return detached_record(attempt)


def expire(tables: Tables, now: float, listening_since: float = 0.0) -> int:
    """End the attempts whose deadline has passed; how many those were.

    Args:
        tables: Of the store.
        now: The time.
        listening_since: See ``rules.overdue``.
    """
    count = 0
    for rollout, stored in tables.overdue(now):
        verdict = rules.overdue(stored.attempt, rollout.config, now, listening_since)
        if verdict is None:
            continue
        status, failure = verdict
        current = _is_current(tables, rollout, stored.attempt)
        attempt = rules.move_attempt(stored.attempt, status, now, current=current, error=failure)
        _save_attempt(tables, now, rollout, stored, attempt, current, stored.next_sequence)
        count += 1
    return count


# --- a runner's whole turn


def turn(
    tables: Tables,
    now: float,
    spans: Sequence[AnySpan],
    finish: AttemptEnd | None,
    limit: int,
    worker_id: str | None,
    key: str | None = None,
) -> Turn:
    """Store spans, end an attempt, claim the next rollouts; see the contract."""
    _check(spans)
    added: list[AnySpan] = []
    attempt = None
    if finish is None:
        added = add_spans(tables, now, spans)
    else:
        rollout, stored = _attempt(tables, finish.rollout_id, finish.attempt_id)
        current = _is_current(tables, rollout, stored.attempt)
        # Refuses before anything is written.
        attempt = rules.move_attempt(
            stored.attempt, finish.status, now, current=current, error=finish.error
        )
        own = (finish.rollout_id, finish.attempt_id)
        if stored.attempt.status in rules.OPEN and all(
            (span.rollout_id, span.attempt_id) == own for span in spans
        ):
            # What the two steps below do, with one look at the records and one write of them.
            added, next_sequence = _insert_new(tables, stored, spans)
            if spans:
                attempt = attempt.changed(last_heartbeat_time=now)
            _save_attempt(tables, now, rollout, stored, attempt, current, next_sequence)
        else:
            added = add_spans(tables, now, spans)
            changes: dict[str, Any] = {"status": finish.status}
            if finish.error is not None:
                changes["error"] = finish.error
            attempt = update_attempt(tables, now, *own, changes)
    claimed = claim(tables, now, limit, worker_id, key) if limit > 0 else []
    return Turn(added, attempt and detached_record(attempt), claimed)


# --- the ledger


def add_ledger_parts(tables: Tables, now: float, parts: Sequence[LedgerPart]) -> None:
    """Keep accounts of rollouts."""
    for rollout_id in {part.rollout_id for part in parts}:
        _rollout(tables, rollout_id)
    for part in parts:
        tables.save_ledger_part(part)


# --- resources and workers


def add_resources(tables: Tables, now: float, resources: NamedResources) -> ResourcesUpdate:
    """Store a new snapshot."""
    return update_resources(tables, now, tables.new_id("rs"), resources)


def update_resources(
    tables: Tables, now: float, resources_id: str, resources: NamedResources
) -> ResourcesUpdate:
    """Replace or make a snapshot."""
    old = tables.resources(resources_id)
    update = ResourcesUpdate(
        resources_id=resources_id,
        create_time=old.create_time if old else now,
        update_time=now,
        version=old.version + 1 if old else 1,
        resources=resources,
    )
    tables.save_resources(update)
    return update


def update_worker(tables: Tables, now: float, worker_id: str, changes: dict[str, Any]) -> Worker:
    """Note a heartbeat."""
    worker = _worker(tables, worker_id)
    worker = Worker.model_validate({**worker.__dict__, **_own(changes), "last_heartbeat_time": now})
    tables.save_worker(worker)
    return detached_record(worker)


# --- steps that operations share


def attempted(rollout: Rollout, attempt: Attempt) -> AttemptedRollout:
    """A rollout with its latest attempt."""
    return AttemptedRollout(**rollout.__dict__, attempt=attempt)


def _rollout(tables: Tables, rollout_id: str) -> Rollout:
    rollout = tables.rollout(rollout_id)
    if rollout is None:
        raise UnknownRecordError(f"no rollout {rollout_id!r} in this store")
    return rollout


def _attempt(tables: Tables, rollout_id: str, attempt_id: str) -> tuple[Rollout, StoredAttempt]:
    rollout = _rollout(tables, rollout_id)
    stored = tables.attempt(rollout_id, attempt_id)
    if stored is None:
        raise UnknownRecordError(f"rollout {rollout_id!r}: it has no attempt {attempt_id!r}")
    return rollout, stored


def _worker(tables: Tables, worker_id: str) -> Worker:
    return tables.worker(worker_id) or Worker(worker_id=worker_id)


def _resources_id(tables: Tables, resources_id: str | None) -> str | None:
    if resources_id is None:
        return tables.latest_resources_id()
    if not tables.has_resources(resources_id):
        raise UnknownRecordError(
            f"no resources {resources_id!r} in this store; add them with update_resources first"
        )
    return resources_id


def _new_rollout(
    tables: Tables,
    now: float,
    request: EnqueueRolloutRequest,
    resources_id: str | None,
    status: Literal["queuing", "preparing"],
) -> Rollout:
    return Rollout(
        rollout_id=tables.new_id("ro"),
        input=request.input,
        start_time=now,
        mode=request.mode,
        resources_id=resources_id,
        status=status,
        config=request.config or RolloutConfig(),
        metadata={} if request.metadata is None else request.metadata,
    )


def _begin_attempt(
    tables: Tables, now: float, rollout: Rollout, worker_id: str | None, key: str | None
) -> AttemptedRollout:
    latest = None if rollout.status == "queuing" else tables.latest_attempt(rollout.rollout_id)
    next_sequence = 1 if latest is None else _number_after_all(tables, rollout.rollout_id)
    attempt = Attempt(
        rollout_id=rollout.rollout_id,
        attempt_id=tables.new_id("at"),
        sequence_id=latest.sequence_id + 1 if latest else 1,
        start_time=now,
        worker_id=worker_id,
    )
    deadline = rules.deadline(attempt, rollout.config)
    tables.effects.limits = tables.effects.limits or deadline is not None
    tables.insert_attempt(StoredAttempt(attempt, next_sequence), deadline, key)
    moved = rules.move_rollout(rollout, "preparing", now)
    _move(tables, rollout, moved)
    return attempted(detached_record(moved), attempt)


def _number_after_all(tables: Tables, rollout_id: str) -> int:
    """Above every span number of the rollout.

    Numbers grow over a rollout's attempts, so that who sorts all its spans finds those of the last
    attempt last.
    """
    attempts = tables.query_attempts(rollout_id, Query())
    stored = [_attempt(tables, rollout_id, one.attempt_id)[1] for one in attempts]
    return max(tables.take_numbers(one).next_sequence for one in stored)


def _made_by(tables: Tables, key: str | None) -> list[AttemptedRollout]:
    """What the request of this key made, when that was not begun: its answer was lost."""
    found: list[AttemptedRollout] = []
    for rollout_id, attempt_id in tables.claimed_with(key) if key is not None else ():
        rollout, stored = _attempt(tables, rollout_id, attempt_id)
        if _is_current(tables, rollout, stored.attempt):
            found.append(attempted(detached_record(rollout), stored.attempt))
    return found


_FREE = ("input", "metadata", "heartbeat_stats")
"""Fields of records that hold what callers made, which they may change in place."""


def detached_record(record: R) -> R:
    """The record as it is handed out: what its reader changes in it stays the reader's."""
    fields = record.__dict__
    changes = {name: detached(fields[name]) for name in _FREE if fields.get(name) is not None}
    return record.changed(**changes) if changes else record


def _own(changes: dict[str, Any]) -> dict[str, Any]:
    """Changes as they are kept: what the caller does to its values later stays the caller's."""
    return {name: detached(value) if name in _FREE else value for name, value in changes.items()}


def detached(value: Any) -> Any:
    """A deep copy; of JSON's types, which is what nearly all inputs are made of, a fast one."""
    match value:
        case str() | int() | float() | None:
            return value
        case dict():
            return {key: detached(item) for key, item in cast(dict[Any, Any], value).items()}
        case list():
            return [detached(item) for item in cast(list[Any], value)]
        case _:
            return deepcopy(value)


def _begin_attempt_of_worker(
    tables: Tables, now: float, rollout: Rollout, worker_id: str | None, key: str | None = None
) -> AttemptedRollout:
    view = _begin_attempt(tables, now, rollout, worker_id, key)
    if worker_id is not None:
        tables.save_worker(rules.worker_busy(_worker(tables, worker_id), view.attempt, now))
    return view


def _is_current(tables: Tables, rollout: Rollout, attempt: Attempt) -> bool:
    latest = tables.latest_attempt(rollout.rollout_id)
    return latest is not None and rules.is_current(rollout, attempt, latest)


def _move(tables: Tables, old: Rollout, new: Rollout) -> None:
    if old.status == new.status:
        return
    tables.move_rollout(new)
    tables.effects.dequeued += old.status in rules.QUEUED
    tables.effects.queued += new.status in rules.QUEUED
    if new.status in rules.ENDED:
        tables.effects.ended.append(new.rollout_id)


def _requeue(tables: Tables, now: float, rollout_id: str, failure: Failure) -> Rollout:
    """Put a rollout back unless it has ended; its current attempt ends in any case."""
    rollout = _rollout(tables, rollout_id)
    latest = tables.latest_attempt(rollout_id)
    if latest is None:
        return rollout
    requeued = rollout
    if rollout.status not in rules.ENDED:
        requeued = rules.move_rollout(rollout, "requeuing", now)
        _move(tables, rollout, requeued)
    if latest.status in rules.OPEN:
        _, stored = _attempt(tables, rollout_id, latest.attempt_id)
        attempt = rules.move_attempt(latest, "failed", now, current=False, error=failure)
        _save_attempt(tables, now, requeued, stored, attempt, False, stored.next_sequence)
    return requeued


def _save_deadline(tables: Tables, stored: StoredAttempt, config: RolloutConfig) -> None:
    deadline = rules.deadline(stored.attempt, config)
    tables.effects.limits = tables.effects.limits or deadline is not None
    tables.save_attempt(stored, deadline)


def _save_attempt(
    tables: Tables,
    now: float,
    rollout: Rollout,
    stored: StoredAttempt,
    attempt: Attempt,
    current: bool,
    next_sequence: int,
) -> None:
    """Keep a changed attempt, and move its rollout and its worker accordingly."""
    old = stored.attempt
    _save_deadline(tables, StoredAttempt(attempt, next_sequence), rollout.config)
    if current and attempt.status != old.status:
        _move(tables, rollout, rules.rollout_after(rollout, attempt, now))
    was_open, is_open = old.status in rules.OPEN, attempt.status in rules.OPEN
    if attempt.worker_id != old.worker_id:
        if was_open and old.worker_id is not None:
            _release(tables, now, old.worker_id, attempt)
        was_open = False
    if attempt.worker_id is None or was_open == is_open:
        return
    if is_open:
        worker = _worker(tables, attempt.worker_id)
        tables.save_worker(rules.worker_busy(worker, attempt, now))
    else:
        _release(tables, now, attempt.worker_id, attempt)


def _release(tables: Tables, now: float, worker_id: str, attempt: Attempt) -> None:
    worker, still_open = _worker(tables, worker_id), tables.open_attempt_of(worker_id)
    tables.save_worker(rules.worker_after(worker, attempt, still_open, now))
