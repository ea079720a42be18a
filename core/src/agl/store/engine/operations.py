"""Every operation on work, once: pure functions of (tables, now, arguments).

The tables keep and find, and know no rules. An operation reads what it needs, refuses before it
writes, and notes in ``tables.effects`` what others wait for. ``run_all`` runs operations in a
transaction; the store then acts on the effects. Operations on other records are in ``records``.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from agl.errors import AglError, InvalidRecordError, InvalidTransitionError, UnknownRecordError
from agl.store import rules
from agl.store.base import AttemptEnd, Turn
from agl.store.engine import steps
from agl.store.engine.tables import Tables, attempted
from agl.store.packed_span import AnySpan, late
from agl.store.waiting import Effects
from agl.types import (
    Attempt,
    AttemptedRollout,
    EnqueueRolloutRequest,
    Failure,
    Rollout,
    RolloutConfig,
)
from agl.utils.json_values import copy_of_changes, copy_of_record

T = TypeVar("T", bound=Tables)
R = TypeVar("R", bound=BaseModel)
_NO_LIMITS = RolloutConfig()  # frozen, so that one serves all rollouts


class Outcome(NamedTuple):
    """What an operation came to: its result, or why there is none."""

    result: Any
    error: Exception | None = None


def run_all(
    tables: T, operations: Sequence[Callable[[T, float], Any]], now: Callable[[], float]
) -> tuple[list[Outcome], Effects]:
    """Run operations one after the other in one transaction: all are kept, or none.

    An operation that raises an ``AglError`` before it has changed anything is refused, and the
    others go on. After any other error the transaction is rolled back, and the error is raised.
    """
    outcomes: list[Outcome] = []
    effects = tables.effects = Effects()
    try:
        tables.begin()
        for operation in operations:
            num_changes = tables.num_changes
            try:
                result = operation(tables, now())
            except AglError as error:
                if tables.num_changes != num_changes:
                    raise
                # Its traceback holds these frames, and so the results of all operations.
                outcomes.append(Outcome(None, error.with_traceback(None)))
            else:
                outcomes.append(Outcome(result))
        tables.commit()
    except BaseException:
        tables.roll_back()
        raise
    return outcomes, effects


# --- putting work in, taking it out


def enqueue_many_rollouts(
    tables: Tables, now: float, rollouts: Sequence[EnqueueRolloutRequest]
) -> list[Rollout]:
    """Queue tasks; see ``EnqueueRolloutRequest.key``."""
    resources_ids = [known_resources_id(tables, request.resources_id) for request in rollouts]
    queued: list[Rollout] = []
    for request, resources_id in zip(rollouts, resources_ids, strict=True):
        known = None if request.key is None else tables.rollout_id_of_key(request.key)
        if known is not None:
            queued += tables.views([known])
            continue
        rollout = new_rollout(tables, now, request, resources_id, "queuing")
        tables.insert_rollout(rollout, request.key)
        tables.effects.queued += 1
        queued.append(rollout)
    return queued


def known_resources_id(tables: Tables, resources_id: str | None) -> str | None:
    """The id, for None the latest; or an ``UnknownRecordError``."""
    if resources_id is None:
        return tables.latest_resources_id
    if resources_id != tables.latest_resources_id and tables.resources(resources_id) is None:
        raise UnknownRecordError(
            f"no resources {resources_id!r} in this store; add them with update_resources first"
        )
    return resources_id


def new_rollout(
    tables: Tables,
    now: float,
    request: EnqueueRolloutRequest,
    resources_id: str | None,
    status: Literal["queuing", "preparing"],
) -> Rollout:
    """A rollout as it was asked for."""
    if request.key is not None:
        steps.check_ids(key=request.key)
    given = {"input": request.input, "metadata": request.metadata or {}}
    return Rollout(
        rollout_id=tables.new_id("ro"),
        start_time=now,
        mode=request.mode,
        resources_id=resources_id,
        status=status,
        config=request.config or _NO_LIMITS,
        **copy_of_changes(given),
    )


def claim(
    tables: Tables, now: float, limit: int, worker_id: str | None, key: str | None = None
) -> list[AttemptedRollout]:
    """Take rollouts out of the queue, each with a new attempt."""
    tables.expect_claim(worker_id, key)
    claimed = steps.made_by(tables, key)
    if claimed:
        return claimed
    while len(claimed) < limit and (rollout := tables.first_queued()) is not None:
        claimed.append(steps.begin_attempt(tables, now, rollout, worker_id, key))
    if worker_id is not None:
        worker = steps.find_worker(tables, worker_id)
        tables.save_worker(
            rules.worker_busy(worker, claimed[-1].attempt, now, claimed=True)
            if claimed
            else rules.worker_found_nothing(worker, now)
        )
    return claimed


def _checked(kind: type[R], given: dict[str, Any]) -> R:
    """A record of what a caller gives: a ValueError of any other kind is a damaged record's."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise InvalidRecordError(f"nothing was stored: {error}") from error


def start_rollout(
    tables: Tables, now: float, worker_id: str | None = None, **about: Any
) -> AttemptedRollout:
    """Make a rollout and its first attempt; see ``EnqueueRolloutRequest``."""
    request = _checked(EnqueueRolloutRequest, about)
    known = None if request.key is None else tables.rollout_id_of_key(request.key)
    if known is not None:
        latest = tables.latest_attempt(known)
        if latest is None:  # queued under this key
            return start_attempt(tables, now, known, worker_id)
        return attempted(copy_of_record(steps.find_rollout(tables, known)), copy_of_record(latest))
    resources_id = known_resources_id(tables, request.resources_id)
    rollout = new_rollout(tables, now, request, resources_id, "preparing")
    tables.insert_rollout(rollout, request.key)
    return steps.begin_attempt_of_worker(tables, now, rollout, worker_id)


def start_attempt(
    tables: Tables,
    now: float,
    rollout_id: str,
    worker_id: str | None = None,
    key: str | None = None,
) -> AttemptedRollout:
    """Make another attempt."""
    for view in steps.made_by(tables, key):
        if view.rollout_id == rollout_id:
            return view
    rollout = steps.find_rollout(tables, rollout_id)
    rules.move_rollout(rollout, "preparing", now)  # refuses before anything is written
    return steps.begin_attempt_of_worker(tables, now, rollout, worker_id, key)


# --- spans


def add_many_spans(tables: Tables, now: float, spans: Sequence[AnySpan]) -> list[AnySpan]:
    """Store spans; see the contract for numbers and duplicates."""
    groups: dict[tuple[str, str], list[int]] = {}
    steps.check_spans(spans)
    for index, span in enumerate(spans):
        groups.setdefault((span.rollout_id, span.attempt_id), []).append(index)
    found = {key: steps.find_attempt(tables, *key) for key in groups}
    added: dict[int, AnySpan] = {}
    for key, indexes in groups.items():
        rollout, stored = found[key]
        own = spans if len(groups) == 1 else [spans[index] for index in indexes]
        current = steps.is_current(tables, rollout, stored.attempt)
        if stored.attempt.status in rules.FINAL or not current:
            own = [late(span, stored.attempt.end_time) for span in own]
        old = stored.attempt
        new, stored = steps.insert_new(tables, stored, own)
        if len(new) == len(spans):  # nearly always; none is between them
            added.update(enumerate(new))
        else:
            by_id = {span.span_id: span for span in new}
            for index in indexes:
                if (span := by_id.pop(spans[index].span_id, None)) is not None:
                    added[index] = span
        attempt = rules.sign_of_life(stored.attempt, now, current=current, span=True)
        steps.save_attempt(tables, now, rollout, old, stored._replace(attempt=attempt), current)
    return [added[index] for index in sorted(added)]


def get_many_span_sequence_ids(
    tables: Tables, now: float, rollout_attempt_ids: Sequence[tuple[str, str]]
) -> list[int]:
    """Give out span numbers."""
    pairs = [(rollout_id, attempt_id) for rollout_id, attempt_id in rollout_attempt_ids]
    found = {pair: steps.find_attempt(tables, *pair) for pair in pairs}
    following = {pair: stored.next_sequence for pair, (_, stored) in found.items()}
    numbers: list[int] = []
    for pair in pairs:
        numbers.append(following[pair])
        following[pair] += 1
    for pair, (rollout, stored) in found.items():
        stored = stored._replace(next_sequence=following[pair])
        steps.save_with_deadline(tables, stored, rollout.config)
    return numbers


# --- changing work


def update_rollout(tables: Tables, now: float, rollout_id: str, **changes: Any) -> Rollout:
    """Change the fields of a rollout."""
    rollout = steps.find_rollout(tables, rollout_id)
    changes = copy_of_changes(changes)
    wanted = changes.pop("if_status", rollout.status)
    if rollout.status not in ([wanted] if isinstance(wanted, str) else wanted):
        raise InvalidTransitionError(f"rollout {rollout_id!r} is {rollout.status!r}, not {wanted}")
    status = changes.pop("status", rollout.status)
    if changes.get("resources_id") is not None:
        known_resources_id(tables, changes["resources_id"])
    edited = _checked(Rollout, {**rollout.__dict__, **changes}) if changes else rollout
    moved = rules.move_rollout_by_hand(edited, status, now)
    if changes:
        tables.edit_rollout(edited)
    latest = tables.latest_attempt(rollout_id)
    if status == "succeeded" and latest is not None:
        moved = moved.changed(reward=latest.reward)
    if "config" in changes and latest is not None:
        _, stored = steps.find_attempt(tables, rollout_id, latest.attempt_id)
        steps.save_with_deadline(tables, stored, edited.config)
    if status == "requeuing" and rollout.status != "requeuing":
        return copy_of_record(steps.requeue(tables, now, rollout_id, rules.REQUEUED_BY_HAND))
    steps.move(tables, edited, moved)
    return copy_of_record(moved)


def update_attempt(
    tables: Tables, now: float, rollout_id: str, attempt_id: str, **changes: Any
) -> Attempt:
    """Change the fields of an attempt, and what follows from that."""
    if attempt_id == "latest":
        latest = tables.latest_attempt(rollout_id)
        attempt_id = latest.attempt_id if latest is not None else attempt_id
    changes = copy_of_changes(changes)
    steps.check_ids(worker_id=changes.get("worker_id"))
    status = changes.pop("status", None)
    rollout, stored = steps.find_attempt(tables, rollout_id, attempt_id, status)
    old = stored.attempt
    if status == old.status and status not in rules.OPEN:
        return copy_of_record(old)
    current = steps.is_current(tables, rollout, old)
    attempt = old
    if changes.pop("last_heartbeat_time", None) is not None:
        # Whatever time it carries, which is that of another machine's clock.
        attempt = rules.sign_of_life(attempt, now, current=current, span=False)
    if status is not None and status != old.status:
        error: Failure | None = changes.pop("error", None)
        attempt = rules.move_attempt(attempt, status, now, current=current, error=error)
    if changes:
        attempt = Attempt.model_validate({**attempt.__dict__, **changes})
    steps.save_attempt(tables, now, rollout, old, stored._replace(attempt=attempt), current)
    return copy_of_record(attempt)


def expire(tables: Tables, now: float, listening_since: float = 0.0) -> int:
    """End the attempts whose deadline has passed; how many those were."""
    count = 0
    for rollout, stored in tables.overdue(now):
        verdict = rules.overdue(stored.attempt, rollout.config, now, listening_since)
        if verdict is None:
            continue
        status, failure = verdict
        current = steps.is_current(tables, rollout, stored.attempt)
        attempt = rules.move_attempt(stored.attempt, status, now, current=current, error=failure)
        after = stored._replace(attempt=attempt)
        steps.save_attempt(tables, now, rollout, stored.attempt, after, current)
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
    if limit > 0:
        tables.expect_claim(worker_id, key)
    added: list[AnySpan] = []
    attempt = None
    if finish is None:
        added = add_many_spans(tables, now, spans)
    else:
        steps.check_spans(spans)
        ids = (finish.rollout_id, finish.attempt_id)
        rollout, stored = steps.find_attempt(tables, *ids, finish.status)
        current = steps.is_current(tables, rollout, stored.attempt)
        # Refuses before anything is written.
        attempt = rules.move_attempt(
            stored.attempt, finish.status, now, current=current, error=finish.error
        )
        others = {(span.rollout_id, span.attempt_id) for span in spans} - {ids}
        if stored.attempt.status in rules.OPEN and current and not others:
            # What the two steps below do, with one look at the records and one write of them.
            old = stored.attempt
            added, stored = steps.insert_new(tables, stored, spans)
            heard = {"last_heartbeat_time": now} if spans else {}
            attempt = attempt.changed(reward=stored.attempt.reward, **heard)
            steps.save_attempt(tables, now, rollout, old, stored._replace(attempt=attempt), current)
        else:
            added = add_many_spans(tables, now, spans)
            changes = {} if finish.error is None else {"error": finish.error}
            attempt = update_attempt(tables, now, *ids, status=finish.status, **changes)
    claimed = claim(tables, now, limit, worker_id, key) if limit > 0 else []
    return Turn(added, attempt and copy_of_record(attempt), claimed)
