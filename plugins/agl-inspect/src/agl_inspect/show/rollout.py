"""A rollout, or a call or any other span of one, for a terminal.

Of a rollout: what was said, what became of each answer, the error, the times.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agl.emitter import get_message_value
from agl.errors import ConfigError
from agl.store.base import LightningStore
from agl.types import Attempt, Span
from agl.utils.text import printable
from agl_inspect.figures import number
from agl_records.final_rewards import FinalReward
from agl_records.training_data import ModelCall
from agl_records.types import EXCLUSION_REASONS
from agl_runs.user_code import place_of
from agl_views.explanations.explanation import CallLine, explain
from agl_views.explanations.rollout_view import Shown, message_text, text_of
from agl_views.explanations.trace_reader import refused_text
from agl_views.explanations.turns import answer_of, num_repeated

BAR_WIDTH = 30
LONGEST_MESSAGE = 2_000
"""Characters of one message; ``--full`` shows all."""
MOST_CALLS = 100
"""Calls of a rollout whose messages are written out; ``--full`` shows all."""


def rollout_lines(shown: Shown, *, tokens: bool = False, full: bool = False) -> Iterator[str]:
    """For people; ``tokens`` adds those of each answer, ``full`` cuts nothing."""
    yield from _head(shown, full)
    written = shown.calls if full else shown.calls[:MOST_CALLS]
    for place, (before, call) in enumerate(zip((None, *written), written, strict=False), 1):
        yield ""
        yield from _call(shown, place, call)
        yield from _messages(call, full, num_repeated(call, before))
        if tokens:
            yield _prompt_tokens(call)
            if (ids := call.response_token_ids) is not None:
                logprobs: Sequence[float | None] = call.response_logprobs or [None] * len(ids)
                pairs = zip(ids, logprobs, strict=True)
                sampled = (f"{one}" if at is None else f"{one}:{at:.3g}" for one, at in pairs)
                yield from indented("sampled", " ".join(sampled))
    rollout_id, trace = shown.rollout.rollout_id, shown.chain.trace
    if more := max(0, shown.num_calls - len(written)):
        yield f"\n{more} more calls: --full shows them, agl show {rollout_id}/SPAN one"
    if not trace.is_whole:
        yield (
            f"\nof {trace.total} spans only the calls and rewards were read: --full reads all, "
            f"agl spans {rollout_id} lists them"
        )
    if told := list(filter(None, map(get_message_value, shown.spans))):
        yield ""
        for text in told:
            text = printable(text)
            yield from indented("message", text if full else cut(text, LONGEST_MESSAGE))
    if shown.attempt is not None and shown.attempt.error is not None:
        yield ""
        yield from failure(shown.attempt)
    if timed := [span for span in shown.spans if span.start_time is not None]:
        yield ""
        yield from waterfall(timed, full)


def _head(shown: Shown, full: bool) -> Iterator[str]:
    rollout, attempt, told = shown.rollout, shown.attempt, shown.explanation
    parts = [rollout.status, *([f"mode {rollout.mode}"] if rollout.mode else [])]
    if rollout.end_time is not None:
        parts.append(f"{rollout.end_time - rollout.start_time:.1f} s since it was queued")
    yield f"rollout  {rollout.rollout_id}: {', '.join(parts)}"
    if attempt is not None:
        by = f" by {printable(attempt.worker_id)}" if attempt.worker_id else ""
        which = f"{attempt.sequence_id} of {shown.num_attempts}"
        yield f"attempt  {which}, {attempt.attempt_id}: {attempt.status}{by}"
    else:
        yield "attempt  none yet"
    task = cut(printable(text_of(rollout.input)), None if full else LONGEST_MESSAGE)
    yield f"task     {task}"
    mine = [one for one in told.rewards if attempt and one.attempt_id == attempt.attempt_id]
    given = ", ".join(f"{one.value:.4g} ({printable(one.name)})" for one in mine)
    if len(mine) > 1 and attempt and attempt.status == "succeeded":
        given = f"{FinalReward(shown.given.reward).text('none')} counts, of {given}"
    elif given and attempt and attempt.status != "succeeded":
        given += " on the way: it counts only where the attempt succeeds"
    refused = [one for one in told.refused if attempt and one.attempt_id == attempt.attempt_id]
    yield f"reward   {'; '.join(filter(None, [given, refused_text(refused)])) or 'none was given'}"
    if told.algorithm is not None or told.step is not None:
        trained = sum(len(row.calls) for row in told.rows)
        words = f"step {told.step} of {told.algorithm}: {trained} of its calls were trained"
        yield f"learned  {words}{'; lost, the run went back behind it' if told.is_lost else ''}"
    if told.excluded_rollout and shown.is_accounted:
        yield f"excluded the rollout, as {printable(told.excluded_rollout)}"


def _call(shown: Shown, place: int, call: ModelCall) -> Iterator[str]:
    choice = f", answer {call.choice}" if call.choice is not None else ""
    counted = [call.prompt_token_ids, call.response_token_ids]
    sizes = " + ".join("?" if one is None else str(len(one)) for one in counted)
    time = ""
    if call.start_time is not None and call.end_time is not None:
        time = f", {call.end_time - call.start_time:.2f} s"
    model, agent, end = _about(call, "a model")
    yield f"--- call {place}: {model}{agent}{choice}, {sizes} tokens{time}{end} ({call.call_id})"
    fate = shown.outcomes.get(call.call_id)
    if fate is None:
        return
    got = "no reward" if fate.reward is None else f"reward {fate.reward:.4g}"
    if not shown.is_accounted:
        late = f": {EXCLUSION_REASONS['late']}" if fate.excluded == "late" else ""
        yield f"    {got}; no algorithm has accounted for it{late}"
    elif fate.excluded is not None:
        detail = f" ({fate.detail})" if fate.detail else ""
        yield f"    not trained: {fate.excluded}{printable(detail)}; {got}"
    else:
        advantage = "" if fate.advantage is None else f", advantage {fate.advantage:+.4g}"
        yield f"    trained: {got}{advantage}. Why: agl explain {shown.rollout.rollout_id}"


def _about(call: ModelCall, unknown: str) -> tuple[str, str, str]:
    """The model of a call, and as parts of a sentence its agent and how it ended."""
    agent = f", agent {printable(call.agent_name)}" if call.agent_name else ""
    end = f", ended by {call.finish_reason}" if call.finish_reason else ""
    return printable(call.requested_model or call.model or unknown), agent, end


def _messages(call: ModelCall, full: bool, same: int = 0) -> Iterator[str]:
    """Those that are new since the call before, the answer, and the error."""
    if same:
        yield f"    ({same} messages as before)"
    for message in (*call.messages[same:], *answer_of(call)):
        role, text = message_text(message)
        yield from indented(role, text if full else cut(text, LONGEST_MESSAGE))
    if call.error:
        yield from indented("error", printable(call.error))


def indented(label: str, text: str) -> Iterator[str]:
    """A label, and beside it the lines of a text."""
    first, *rest = text.split("\n")
    yield f"    {label:<10}{first}".rstrip()
    yield from (f"{' ' * 14}{line}".rstrip() for line in rest)


def cut(text: str, longest: int | None) -> str:
    """The first characters of a text, and how many more there are; None cuts nothing."""
    if longest is None:
        return text
    more = len(text) - longest
    return text if more <= 0 else f"{text[:longest]}… ({more} characters more: --full)"


def _prompt_tokens(call: ModelCall) -> str:
    """A line of the ids of a prompt, or that nobody knows those of the answer."""
    if call.response_token_ids is None:
        return "    tokens    unknown: the server gave no ids"
    given = " ".join(map(str, call.prompt_token_ids or ()))
    return f"    prompt    {given or 'unknown'}"


def failure(attempt: Attempt) -> Iterator[str]:
    """The error of an attempt that has one: where, what, and its traceback."""
    error = attempt.error
    assert error is not None
    where = place_of(error.traceback)
    yield f"failed in the {error.boundary}{f', {where}' if where else ''}"
    yield from indented("error", printable(f"{error.type}: {error.message}"))
    if error.traceback:
        yield from (f"    {line}" for line in printable(error.traceback.rstrip()).split("\n"))


def waterfall(spans: Iterable[Span], full: bool) -> Iterator[str]:
    """A bar per span, over the time of all."""
    ordered = sorted(spans, key=lambda span: (span.start_time or 0, span.sequence_id))
    begin = min(span.start_time or 0 for span in ordered)
    end = max(span.end_time or span.start_time or 0 for span in ordered)
    whole = max(end - begin, 1e-9)
    yield f"time     {end - begin:.3g} s"
    for span in ordered:
        start = (span.start_time or 0) - begin
        stop = max(start, (span.end_time or 0) - begin)
        left = min(int(BAR_WIDTH * start / whole), BAR_WIDTH - 1)
        length = max(1, round(BAR_WIDTH * (stop - start) / whole))
        bar = f"{' ' * left}{'█' * min(length, BAR_WIDTH - left)}".ljust(BAR_WIDTH)
        failed = " ERROR" if span.status.status_code == "ERROR" else ""
        failed += " late" if span.late else ""
        name = cut(printable(span.name), None if full else 60)
        yield f"  {stop - start:8.3f} s |{bar}| {name}{failed}"


@dataclass(frozen=True)
class ShownSpan:
    """A span, and the model call that it records, where it records one."""

    span: Span
    calls: tuple[ModelCall, ...]
    """One per answer; none where the span is no call."""
    outcomes: dict[str, CallLine]
    """Call id -> what it got."""
    masks: dict[str, list[int]]
    """Call id -> per sampled token 1 where it was trained; only of calls in a row."""
    account: str
    """Whose account ``outcomes`` are: of which step, or nobody's."""

    def as_json(self) -> dict[str, Any]:
        return {
            "span": self.span.model_dump(mode="json"),
            "account": self.account,
            "calls": [
                {
                    **call.model_dump(mode="json"),
                    "fate": asdict(fate) if (fate := self.outcomes.get(call.call_id)) else None,
                    "mask": self.masks.get(call.call_id),
                }
                for call in self.calls
            ],
        }


async def show_span(
    store: LightningStore, rollout_id: str, attempt_id: str, span_id: str, step: int | None = None
) -> ShownSpan:
    """Read what is shown of a span; a ``ConfigError`` without it, or an account of that step."""
    spans = await store.query_spans(rollout_id, attempt_id, span_id=span_id)
    if not len(spans):
        raise ConfigError(f"attempt {attempt_id!r} has no span {span_id!r}. See: agl spans")
    chain = await explain(store, rollout_id, step)
    calls = tuple(
        call
        for call in chain.calls.values()
        if call.attempt_id == attempt_id and call.call_id.startswith(span_id)
    )
    whole = chain.whole
    masks = {
        line.call_id: chain.rows[row.number].loss_mask[slice(*line.tokens)]
        for row in whole.rows
        for line in row.calls
        if line.tokens
    }
    account = f"step {whole.step} of {whole.algorithm}" if whole.algorithm else ""
    outcomes = {one: line for one, line in whole.lines.items() if line.attempt_id == attempt_id}
    return ShownSpan(spans[0], calls, outcomes, masks, account)


def span_lines(shown: ShownSpan, *, tokens: bool = False, full: bool = False) -> Iterator[str]:
    """For people."""
    yield from _span_head(shown.span)
    for call in shown.calls:
        yield from _span_call(shown, call, tokens, full)
    if not shown.calls:
        yield from _attributes(shown.span, full)


def _span_head(span: Span) -> Iterator[str]:
    status = span.status.status_code
    why = f": {printable(span.status.description)}" if span.status.description else ""
    yield f"span     {span.span_id}, {printable(span.name)}: {status}{why}"
    yield f"of       {span.rollout_id}, attempt {span.attempt_id}, number {span.sequence_id}"
    if span.parent_id:
        yield f"under    span {span.parent_id}"
    if span.start_time is not None and span.end_time is not None:
        yield f"time     {span.end_time - span.start_time:.3f} s"


def _attributes(span: Span, full: bool) -> Iterator[str]:
    """Attributes and events of a span, a value per line."""
    events = [(printable(event.name), event.attributes) for event in span.events]
    for name, attributes in [("", span.attributes), *events]:
        if name:
            yield f"    event     {name}"
        for key, value in attributes.items():
            text = printable(text_of(value))
            said = (text if full else cut(text, LONGEST_MESSAGE)).split("\n")
            if len(said) == 1:
                yield f"    {printable(key)}: {said[0]}"
                continue
            yield f"    {printable(key)}:"
            yield from (f"        {line}".rstrip() for line in said)


def _span_call(shown: ShownSpan, call: ModelCall, tokens: bool, full: bool) -> Iterator[str]:
    model, agent, end = _about(call, "unknown")
    version = f", weights {printable(call.model_version)}" if call.model_version else ""
    yield f"model    {model}{version}{agent}{end}"
    if call.response_id:
        yield f"answer   {printable(call.response_id)}"
    fate = shown.outcomes.get(call.call_id)
    if fate is not None:
        yield f"learned  {shown.account or 'no algorithm has accounted for it'}"
        yield from (f"  {printable(line)}" for line in [*call_lines(fate)][1:])
    yield ""
    for tool in call.tools:
        yield from _tool(tool, full)
    yield from _messages(call, full)
    if tokens:
        yield ""
        yield from _token_table(call, shown.masks.get(call.call_id))


def _tool(tool: dict[str, Any], full: bool) -> Iterator[str]:
    given: Any = tool.get("function")
    function: dict[str, Any] = given if isinstance(given, dict) else tool
    parameters: Any = function.get("parameters")
    known = parameters.get("properties") if isinstance(parameters, dict) else None
    names = ", ".join(map(str, known)) if isinstance(known, dict) else ""
    about = str(function.get("description") or "")
    yield from indented("tool", printable(f"{function.get('name')}({names}) {about}".rstrip()))
    if full:
        yield from indented("", printable(json.dumps(parameters, ensure_ascii=False, default=str)))


def _token_table(call: ModelCall, mask: list[int] | None) -> Iterator[str]:
    """A line per sampled token: place, id, log-probability, whether it was trained."""
    yield _prompt_tokens(call)
    if call.response_token_ids is None:
        return
    yield "    sampled   place  id  log-probability  mask"
    size = len(call.response_token_ids)
    logprobs = call.response_logprobs or [None] * size
    rows = zip(call.response_token_ids, logprobs, mask or [0] * size, strict=False)
    for place, (one, logprob, kept) in enumerate(rows):
        at = "unknown" if logprob is None else f"{logprob:.4f}"
        yield f"              {place:>5}  {one:>6}  {at:>9}  {kept}"


def call_lines(call: CallLine) -> Iterator[str]:
    """What one call got and why, a fact per line."""
    agent = f", agent {call.agent_name!r}" if call.agent_name else ""
    tokens = f", sampled tokens {call.tokens[0]} to {call.tokens[1] - 1}" if call.tokens else ""
    yield f"  call     {call.call_id} of attempt {call.attempt_id}{agent}{tokens}"
    if call.rule or call.because:
        got = number(call.reward, "no reward")
        of = f" (from span {', '.join(call.sources)})" if call.sources else ""
        yield f"  credit   {got} by rule {call.rule!r}: {call.because}{of}"
    if call.advantage is not None:
        group = call.group or "all calls of the sibling rollouts"
        yield f"  group    {group}"
        yield f"  advantage {call.advantage:+.4g}: {call.advantage_because}"
    if call.excluded is not None:
        meaning = EXCLUSION_REASONS[call.excluded]
        detail = f" ({call.detail})" if call.detail else ""
        yield f"  excluded {call.excluded}: {meaning}{detail}"
