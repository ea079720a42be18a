"""What an id, or the beginning of one, names: a rollout, an attempt, a call, a span, a task, a run.

Without any, it is the newest rollout that failed, or else the newest.
"""

from agl.cli.shared import note
from agl.errors import ConfigError
from agl.store.base import LightningStore
from agl.types import RolloutStatus
from agl_inspect.show.id_queries import MOST, Reading, Subject, reading_of
from agl_records.ledger.ledger import load_parts
from agl_runs.store import query_runs

SHORTEST = 4
"""Letters of a beginning that is looked for among spans and response ids."""
LONGEST = 1_000
"""Characters of what is looked for; ids are shorter, but that of a task may be anything."""
NEWEST = 500
"""Rollouts among which the newest is looked for that an algorithm has accounted for."""
_LONGEST_NEAR = 24
"""Characters behind ``ro-`` and ``at-``, at most, of a beginning for which near ids are sought."""


async def find(store: LightningStore, beginning: str) -> Subject:
    """What a store has under an id, or under the beginning of one.

    ``ROLLOUT/SPAN`` names a span where several attempts have one of its id.

    Raises:
        ConfigError: There is nothing, or there are several; the message names them, or near ones.
    """
    if len(beginning) > LONGEST:
        raise ConfigError(
            f"{beginning[:40]!r}... is of {len(beginning):,} characters; an id, or the beginning "
            f"of one, has {LONGEST:,} at most"
        )
    above, slash, below = beginning.rpartition("/")
    reading = reading_of(store)
    if slash and above:
        found = await _within(store, await find(store, above), below)
    else:
        found = await _matching(store, reading, beginning)
    exact = [one for one in found if beginning in (one.name, one.name.partition("-")[2])]
    if len(exact) == 1:
        return exact[0]
    if len(found) == 1:
        return found[0]
    if found:
        named = ", ".join(one.text for one in found[: MOST - 1])
        more = ", and more" if len(found) >= MOST else ""
        hint = ". ROLLOUT/SPAN says which" if all(one.kind == "span" for one in found) else ""
        raise ConfigError(f"{beginning!r} is the beginning of several: {named}{more}{hint}")
    near = await _near(reading, beginning)
    hint = f"; near it are {', '.join(near)}" if near else ""
    what = f"rollout, attempt, call, span, task or run {beginning!r}"
    if reading.looked_at:
        seen = f"only {' and '.join(reading.looked_at)} were looked at"
        raise ConfigError(f"no {what} was found; {seen}{hint}. See: agl rollouts")
    raise ConfigError(f"the store has no {what}{hint}. See: agl rollouts")


async def attempt_number(store: LightningStore, subject: Subject) -> int | None:
    """The number of the attempt that a subject is, or is of; None for a rollout."""
    if not subject.attempt_id:
        return None
    attempts = await store.query_attempts(subject.rollout_id)
    return {one.attempt_id: one.sequence_id for one in attempts}[subject.attempt_id]


async def newest(store: LightningStore) -> tuple[Subject, str]:
    """The newest rollout that failed, else the newest; and which of the two it is.

    Raises:
        ConfigError: There is none.
    """
    for failed in (True, False):  # a page also counts all that there are, which takes its time
        status_in: list[RolloutStatus] | None = ["failed"] if failed else None
        found = await store.query_rollouts(status_in=status_in, sort_order="desc", limit=1)
        if len(found):
            rollout_id = found[0].rollout_id
            what = f"the newest rollout{' that failed' if failed else ''}"
            return Subject("rollout", rollout_id, rollout_id), what
    raise ConfigError("the store has no rollout yet")


async def rollout_of(store: LightningStore, name: str | None, *, accounted: bool = False) -> str:
    """The id of the rollout that a name is of, or the beginning of one: of an attempt, or a span.

    Without a name it is the newest, with ``accounted`` the newest that an algorithm has accounted
    for, and a remark says which.

    Raises:
        ConfigError: There is none, or it is the name of something else.
    """
    if name is None:
        newest = await store.query_rollouts(sort_order="desc", limit=NEWEST if accounted else 1)
        ids = [one.rollout_id for one in newest]
        if not ids:
            raise ConfigError("the store has no rollout yet")
        parts = await load_parts(store, ids) if accounted else ()
        known = {part.rollout_id for part in parts}
        chosen = next((one for one in ids if one in known), ids[0])
        note(f"{chosen}, the newest rollout; see agl rollouts for others")
        return chosen
    subject = await find(store, name)
    if not subject.rollout_id:
        raise ConfigError(f"{subject.text} is no rollout. See: agl show {subject.name}")
    return subject.rollout_id


async def _matching(store: LightningStore, reading: Reading, beginning: str) -> list[Subject]:
    """All that it may mean; the cheap questions first, and the others only where they must be."""
    if beginning.startswith("ro-"):
        return await reading.rollouts(beginning)
    if beginning.startswith("at-"):
        return await reading.attempts(beginning)
    if beginning.startswith("task-"):
        return await reading.task(beginning) or await reading.tasks(beginning)
    runs = await query_runs(store)
    found = [Subject("run", one.run_id) for one in runs if one.run_id.startswith(beginning)]
    found += await reading.rollouts(f"ro-{beginning}")
    found += await reading.attempts(f"at-{beginning}")
    is_plain = len(found) == 1 and len(beginning) >= SHORTEST
    if is_plain or any(one.name == beginning for one in found):
        return found
    if not found and (task := await reading.task(beginning)):
        return task
    if len(beginning) >= SHORTEST:
        found += await reading.spans(beginning)
        found = found or await reading.responses(beginning)
    return found or await reading.tasks(beginning) or await reading.tasks(f"task-{beginning}")


async def _within(store: LightningStore, above: Subject, beginning: str) -> list[Subject]:
    """Spans of a rollout or attempt."""
    spans = await store.query_spans(above.rollout_id, above.attempt_id or None)
    ids = [(one.rollout_id, one.attempt_id, one.span_id) for one in spans]
    return [Subject.of_span(*one) for one in ids if one[2].startswith(beginning)]


async def _near(reading: Reading, beginning: str) -> list[str]:
    """What begins as the longest beginning of it that anything has; at least a digit."""
    asks = {"ro-": reading.rollouts, "at-": reading.attempts}
    if (own := beginning[:3]) in asks:
        asks, beginning = {own: asks[own]}, beginning[3:]
    for length in range(min(len(beginning) - 1, _LONGEST_NEAR), 0, -1):
        for prefix, ask in asks.items():
            if found := await ask(f"{prefix}{beginning[:length]}"):
                return [one.name for one in found[:3]]
    return []
