"""Spans of other programs into a store: each trace, or conversation over several, is a rollout."""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import Any

from agl.emitter import get_rewards_from_span
from agl.errors import AdapterError, ConfigError
from agl.semconv import AGL_ANNOTATION, LightningSpanAttributes
from agl.types import Span
from agl.utils.otel import extract_links_from_attributes
from agl_inspect.exchange.importer import Importer, hex_id
from agl_records.calls.reader import model_calls, unread_spans

BATCH = 500
"""Spans that are written at once."""
UNNAMED = "recorded"
"""Attempt id, in the file's terms, of spans that name none."""
CONVERSATIONS = (
    "gen_ai.conversation.id",
    "session.id",
    "langfuse.session.id",
    "mlflow.trace.session",
    "traceloop.association.properties.session_id",
    "ai.telemetry.metadata.sessionId",
)
"""Attributes that say to which conversation a trace belongs."""

LINK = LightningSpanAttributes.LINK.value

ReadSpans = Callable[[Path], Iterator[Span]]
"""Reads the spans of a file; a ``ConfigError`` for what is none."""


def conversations(path: Path, read: ReadSpans, stored: Container[str]) -> dict[str, str]:
    """Trace -> the conversation that any of its spans names, of spans that name no rollout.

    A trace that has a reward of its own is no part of one: the reward would pay for all of it.
    Unless the conversation has a reward, too, or no other trace. If the store has such a trace as a
    part of its conversation, that is a ``ConfigError``.
    """
    found: dict[str, str] = {}
    rewarded: set[str] = set()
    for span in read(path):
        said = (span.attributes.get(key) for key in CONVERSATIONS)
        if span.attempt_id == UNNAMED and (name := next(filter(None, said), None)):
            found.setdefault(span.rollout_id, str(name))
        if _is_reward(span) and not extract_links_from_attributes(span.attributes):
            rewarded.add(span.rollout_id)
    traces = Counter(found.values())
    for trace, name in [*found.items()]:
        if trace in rewarded and name not in rewarded and traces[name] > 1:
            if name in stored and trace not in stored:
                raise ConfigError(
                    f"{path}: trace {trace!r} has a reward of its own, and the store has it within "
                    f"its conversation {name!r}, as there was none. Import into a new file"
                )
            del found[trace]
    return found


def _is_reward(span: Span) -> bool:
    return span.name == AGL_ANNOTATION and bool(get_rewards_from_span(span))


def joined_spans(
    path: Path, read: ReadSpans, stored: Container[str]
) -> Callable[[], Iterator[Span]]:
    """Reads a file's spans, those of a conversation under its name, again at each call.

    Ids are of a trace: if two traces of a conversation have one in common, the second gets another.
    """
    joined = conversations(path, read, stored)
    owners: dict[tuple[str, Any], str] = {}

    def spans() -> Iterator[Span]:
        for span in read(path):
            if (name := joined.get(span.rollout_id)) is None:
                yield span
                continue

            def own(value: Any, name: str = name, trace_id: str = span.trace_id) -> Any:
                if owners.setdefault((name, value), trace_id) == trace_id:
                    return value
                return hex_id(f"{trace_id} {value}")

            attributes = {
                key: own(value) if key.startswith(LINK) and key.endswith("value_match") else value
                for key, value in span.attributes.items()
            }
            ids = {
                "span_id": own(span.span_id),
                "parent_id": span.parent_id and own(span.parent_id),
            }
            yield span.model_copy(update={**ids, "rollout_id": name, "attributes": attributes})

    return spans


async def add_traces(importer: Importer, path: Path, read: ReadSpans) -> None:
    """Import a file, a span at a time.

    Traces of one conversation are one rollout. The task of a rollout is what its first model call
    was asked: the last message of a user. Of a rollout that the store has, only rewards are new. A
    line of another form, a span that cannot be stored, and a store with a part of a rollout are a
    ``ConfigError``; then nothing was written.
    """
    spans = joined_spans(path, read, importer.ids)
    starts: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
    known: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    errors: dict[str, str] = {}
    for span in spans():
        starts[span.rollout_id].append((span.start_time or 0.0, span.span_id))
        if importer.has(span.rollout_id) and not _is_reward(span):
            known[span.rollout_id].add((span.trace_id, span.span_id))
        if span.parent_id is None and span.status.status_code == "ERROR":
            why = span.status.description or f"span {span.name!r} has status ERROR"
            errors[span.rollout_id] = why
    for name, given in known.items():
        rollout_id = importer.ids[name].rollout_id
        stored = await importer.store.query_spans(rollout_id)
        if new := given - {(one.trace_id, one.span_id) for one in stored}:
            raise ConfigError(
                f"{path}: {name!r} is in the store as {rollout_id!r}, without {len(new)} of its "
                "spans. Import the whole into a new file"
            )
    # Files have spans in the order in which they ended; a store numbers them as they began.
    numbers = {
        rollout_id: {span_id: n for n, (_, span_id) in enumerate(sorted(of_spans), start=1)}
        for rollout_id, of_spans in starts.items()
    }
    open_ids: dict[str, tuple[str, str]] = {}
    batch: list[Span] = []
    for span in spans():
        if importer.has(span.rollout_id) and span.rollout_id not in open_ids:
            if _is_reward(span):
                await importer.reward_later(span.rollout_id, [span])
            continue
        if span.rollout_id not in open_ids:
            open_ids[span.rollout_id] = await importer.begin(span.rollout_id, {"from": path.name})
        rollout_id, attempt_id = open_ids[span.rollout_id]
        number = numbers[span.rollout_id][span.span_id]
        ids = {"rollout_id": rollout_id, "attempt_id": attempt_id, "sequence_id": number}
        batch.append(span.model_copy(update=ids))
        if len(batch) >= BATCH:
            await _write(importer, batch)
    await _write(importer, batch)
    importer.done.known += len(starts) - len(open_ids)
    for name, ids in open_ids.items():
        own = await importer.store.query_spans(*ids)
        if (task := _task_of(own)) is not None:
            await importer.store.update_rollout(ids[0], input=task)
        await importer.end(name, *ids, errors.get(name))
        importer.done.unread += unread_spans(own)
        importer.done.rewards += sum(map(_is_reward, own))


async def _write(importer: Importer, batch: list[Span]) -> None:
    if batch:
        importer.done.spans += len(await importer.store.add_many_spans(batch))
        batch.clear()
        importer.progress(importer.done)


def _task_of(spans: Sequence[Span]) -> Any:
    """What the first model call was asked; None where there is no call."""
    try:
        calls = model_calls(spans)
    except AdapterError:
        return None
    asked = [m.get("content") for m in (calls[0].messages if calls else ()) if m["role"] == "user"]
    return asked[-1] if asked else None
