"""What operations are made of: finding records, making them, and what follows from a change."""

from collections.abc import Sequence

from agl.errors import InvalidRecordError, UnknownRecordError
from agl.store import rules
from agl.store.engine.tables import StoredAttempt, Tables, attempted
from agl.store.packed_span import AnySpan, PackedSpan
from agl.store.span_checks import check_span
from agl.types import (
    UNASSIGNED,
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    Failure,
    Rollout,
    RolloutConfig,
    Worker,
)
from agl.utils.json_values import copy_of_record
from agl.utils.rewards import get_reward_value, place_of_reward
from agl.utils.text import clean


def check_ids(**ids: str | None) -> None:
    """Refuse ids that a database could not give back, or find: with a NUL or a lone surrogate."""
    for name, one in ids.items():
        if one is not None and ("\0" in one or clean(one) != one):
            raise InvalidRecordError(
                f"{name} {one!r}: expected text that UTF-8 can hold, without NUL; nothing is stored"
            )


def find_rollout(tables: Tables, rollout_id: str) -> Rollout:
    """The rollout, or an ``UnknownRecordError``."""
    rollout = tables.rollout(rollout_id)
    if rollout is None:
        raise UnknownRecordError(f"no rollout {rollout_id!r} in this store")
    return rollout


def find_attempt(
    tables: Tables, rollout_id: str, attempt_id: str, status: AttemptStatus | None = None
) -> tuple[Rollout, StoredAttempt]:
    """The rollout and its attempt, or an ``UnknownRecordError``.

    With its next ``status`` a late report is refused before its rollout is read.
    """
    stored = tables.attempt(rollout_id, attempt_id)
    if stored is not None and status is not None:
        rules.check_step(stored.attempt, status)
    rollout = find_rollout(tables, rollout_id)
    if stored is None:
        raise UnknownRecordError(f"rollout {rollout_id!r}: it has no attempt {attempt_id!r}")
    return rollout, stored


def find_worker(tables: Tables, worker_id: str) -> Worker:
    """The worker; one that is not stored yet is new."""
    check_ids(worker_id=worker_id)
    return tables.worker(worker_id) or Worker(worker_id=worker_id)


def begin_attempt(
    tables: Tables, now: float, rollout: Rollout, worker_id: str | None, key: str | None
) -> AttemptedRollout:
    """Make the next attempt, which takes the rollout out of the queue; the worker is not told."""
    check_ids(worker_id=worker_id, key=key)
    latest = None if rollout.status == "queuing" else tables.latest_attempt(rollout.rollout_id)
    # Numbers grow over a rollout's attempts, so that who sorts all its spans finds those of the
    # last attempt last.
    next_sequence = 1 if latest is None else tables.next_sequence_of_all(rollout.rollout_id)
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
    move(tables, rollout, moved)
    return attempted(copy_of_record(moved), attempt)


def made_by(tables: Tables, key: str | None) -> list[AttemptedRollout]:
    """Rollouts that an earlier request with this key claimed and nobody began.

    Its client lost the answer and asks again.
    """
    found: list[AttemptedRollout] = []
    for rollout_id, attempt_id in tables.made_by(key) if key is not None else ():
        rollout, stored = find_attempt(tables, rollout_id, attempt_id)
        if is_current(tables, rollout, stored.attempt):
            found.append(attempted(copy_of_record(rollout), stored.attempt))
    return found


def begin_attempt_of_worker(
    tables: Tables, now: float, rollout: Rollout, worker_id: str | None, key: str | None = None
) -> AttemptedRollout:
    """The same, and the worker is busy with it."""
    view = begin_attempt(tables, now, rollout, worker_id, key)
    if worker_id is not None:
        tables.save_worker(rules.worker_busy(find_worker(tables, worker_id), view.attempt, now))
    return view


def is_current(tables: Tables, rollout: Rollout, attempt: Attempt) -> bool:
    """See ``rules.is_current``; late reports are many, and cost no look at the latest attempt."""
    if rollout.status in rules.ENDED:
        return False
    latest = tables.latest_attempt(rollout.rollout_id)
    return latest is not None and rules.is_current(rollout, attempt, latest)


def move(tables: Tables, old: Rollout, new: Rollout) -> None:
    """Keep the new status of a rollout, and note who may wait for it."""
    if old.status == new.status:
        return
    tables.move_rollout(new)
    tables.effects.dequeued += old.status in rules.QUEUED
    tables.effects.queued += new.status in rules.QUEUED
    if new.status in rules.ENDED:
        tables.effects.ended.append(new.rollout_id)


def requeue(tables: Tables, now: float, rollout_id: str, failure: Failure) -> Rollout:
    """Put a rollout back unless it has ended; its current attempt ends in any case."""
    rollout = find_rollout(tables, rollout_id)
    latest = tables.latest_attempt(rollout_id)
    if latest is None:
        return rollout
    requeued = rollout
    if rollout.status not in rules.ENDED:
        move(tables, rollout, requeued := rules.move_rollout(rollout, "requeuing", now))
    if latest.status in rules.OPEN:
        _, stored = find_attempt(tables, rollout_id, latest.attempt_id)
        attempt = rules.move_attempt(latest, "failed", now, current=False, error=failure)
        save_attempt(tables, now, requeued, stored.attempt, stored._replace(attempt=attempt), False)
    return requeued


def save_with_deadline(tables: Tables, stored: StoredAttempt, config: RolloutConfig) -> None:
    """Keep an attempt; the watchdog looks where it now has a deadline."""
    deadline = rules.deadline(stored.attempt, config)
    tables.effects.limits = tables.effects.limits or deadline is not None
    tables.save_attempt(stored, deadline)


def save_attempt(
    tables: Tables, now: float, rollout: Rollout, old: Attempt, stored: StoredAttempt, current: bool
) -> None:
    """Keep a changed attempt, and move its rollout and its worker accordingly."""
    attempt = stored.attempt
    save_with_deadline(tables, stored, rollout.config)
    if current and attempt.status != old.status:
        move(tables, rollout, rules.rollout_after(rollout, attempt, now))
    is_given = attempt.reward != old.reward and rollout.status == "succeeded"  # by an algorithm
    if is_given and tables.latest_attempt(rollout.rollout_id) == attempt:
        tables.move_rollout(rollout.changed(reward=attempt.reward))
    was_open, is_open = old.status in rules.OPEN, attempt.status in rules.OPEN
    if attempt.worker_id != old.worker_id:
        if was_open and old.worker_id is not None:
            _release(tables, now, old.worker_id, attempt)
        was_open = False
    if attempt.worker_id is None or was_open == is_open:
        return
    if is_open:
        tables.save_worker(rules.worker_busy(find_worker(tables, attempt.worker_id), attempt, now))
    else:
        _release(tables, now, attempt.worker_id, attempt)


def _release(tables: Tables, now: float, worker_id: str, attempt: Attempt) -> None:
    worker, still_open = find_worker(tables, worker_id), tables.open_attempt_of(worker_id)
    tables.save_worker(rules.worker_after(worker, attempt.status, still_open, now))


# --- spans


def check_spans(spans: Sequence[AnySpan]) -> None:
    """Refuse what cannot be stored; see ``check_span``."""
    for span in spans:
        if not isinstance(span, PackedSpan):  # those were checked when they were packed
            check_span(span)


def insert_new(
    tables: Tables, stored: StoredAttempt, spans: Sequence[AnySpan]
) -> tuple[list[AnySpan], StoredAttempt]:
    """Keep those of an attempt's spans that are new; they, and the attempt with what they say."""
    attempt, next_sequence, reward_place = stored
    known: set[str] = set()
    if next_sequence > 1:  # else it has none
        known = tables.known_spans(attempt.attempt_id, [span.span_id for span in spans])
    new: list[AnySpan] = []
    newest: AnySpan | None = None
    for span in spans:
        if span.span_id in known:
            continue
        known.add(span.span_id)
        if span.sequence_id == UNASSIGNED:
            span = _numbered(span, next_sequence)
            next_sequence += 1
        else:
            next_sequence = max(next_sequence, span.sequence_id + 1)
        new.append(span)
        if (place := place_of_reward(span)) and place >= reward_place:
            newest, reward_place = span, place
    if newest is not None:
        attempt = attempt.changed(reward=get_reward_value(newest))
    tables.insert_spans(attempt.attempt_id, new)
    return new, StoredAttempt(attempt, next_sequence, reward_place)


def _numbered(span: AnySpan, number: int) -> AnySpan:
    if isinstance(span, PackedSpan):
        return PackedSpan._make((*span[:2], number, *span[3:]))  # half of _replace's time
    return span.changed(sequence_id=number)
