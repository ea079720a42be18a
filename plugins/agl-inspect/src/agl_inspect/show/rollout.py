"""A rollout for a terminal: what was said, what became of each answer, the error, the times."""

from collections.abc import Iterable, Iterator, Sequence

from agl.types import Attempt, Span
from agl.utils.text import printable
from agl_records.final_rewards import reward_text
from agl_records.training_data import ModelCall
from agl_runs.user_code import place_of
from agl_views.explanations.reward_lines import refused_text
from agl_views.explanations.rollout_view import Shown, message_text, text_of
from agl_views.explanations.turns import answer_of, num_repeated

BAR_WIDTH = 30
LONGEST_MESSAGE = 2_000
"""Characters of one message; ``--full`` shows all."""
MOST_CALLS = 100
"""Calls of a rollout whose messages are written out; ``--full`` shows all."""


def as_text(shown: Shown, *, tokens: bool = False, full: bool = False) -> str:
    """Lines for people; ``tokens`` adds those of each answer, ``full`` cuts nothing."""
    lines = [*_head(shown)]
    written = shown.calls if full else shown.calls[:MOST_CALLS]
    before: ModelCall | None = None
    for number, call in enumerate(written, 1):
        lines += ["", *_call(shown, number, call)]
        lines += _messages(call, num_repeated(call, before), full)
        before = call
        if call.error:
            lines += indented("error", printable(call.error))
        if tokens:
            lines += _tokens(call)
    lines += _left_out(shown, len(written))
    if shown.attempt is not None and shown.attempt.error is not None:
        lines += ["", *failure(shown.attempt)]
    if timed := [span for span in shown.spans if span.start_time is not None]:
        lines += ["", *waterfall(timed)]
    return "\n".join(lines)


def _left_out(shown: Shown, number: int) -> Iterator[str]:
    """What of a long rollout was not read, or not written out."""
    rollout_id, trace = shown.rollout.rollout_id, shown.chain.trace
    num_calls = len(shown.calls) if trace.num_calls is None else trace.num_calls
    if num_calls > number:
        more = num_calls - number
        yield f"\n{more} more calls: --full shows them, agl show {rollout_id}/SPAN one"
    if not trace.is_whole:
        yield (
            f"\nof {trace.total} spans only the calls and rewards were read: --full reads all, "
            f"agl spans {rollout_id} lists them"
        )


def _head(shown: Shown) -> Iterator[str]:
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
    yield f"task     {cut(printable(text_of(rollout.input)), LONGEST_MESSAGE)}"
    mine = [one for one in told.rewards if attempt and one.attempt_id == attempt.attempt_id]
    given = ", ".join(f"{one.value:.4g} ({printable(one.name)})" for one in mine)
    if len(mine) > 1 and attempt and attempt.status == "succeeded":
        given = f"{reward_text(shown.given.reward, None, 'none')} counts, of {given}"
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


def _call(shown: Shown, number: int, call: ModelCall) -> Iterator[str]:
    agent = f", agent {printable(call.agent_name)}" if call.agent_name else ""
    choice = f", answer {call.choice}" if call.choice is not None else ""
    counted = [call.prompt_token_ids, call.response_token_ids]
    sizes = " + ".join("?" if one is None else str(len(one)) for one in counted)
    time = ""
    if call.start_time is not None and call.end_time is not None:
        time = f", {call.end_time - call.start_time:.2f} s"
    model = printable(call.requested_model or call.model or "a model")
    end = f", ended by {call.finish_reason}" if call.finish_reason else ""
    yield f"--- call {number}: {model}{agent}{choice}, {sizes} tokens{time}{end} ({call.call_id})"
    fate = shown.fates.get(call.call_id)
    if fate is None:
        return
    got = "no reward" if fate.reward is None else f"reward {fate.reward:.4g}"
    if not shown.is_accounted:
        yield f"    {got}; no algorithm has accounted for it"
    elif fate.excluded is not None:
        detail = f" ({fate.detail})" if fate.detail else ""
        yield f"    not trained: {fate.excluded}{printable(detail)}; {got}"
    else:
        advantage = "" if fate.advantage is None else f", advantage {fate.advantage:+.4g}"
        yield f"    trained: {got}{advantage}. Why: agl explain {shown.rollout.rollout_id}"


def _messages(call: ModelCall, same: int, full: bool) -> Iterator[str]:
    """Those that are new since the call before, and the answer."""
    if same:
        yield f"    ({same} messages as before)"
    for message in (*call.messages[same:], *answer_of(call)):
        role, text = message_text(message)
        yield from indented(role, text if full else cut(text, LONGEST_MESSAGE))


def indented(label: str, text: str) -> Iterator[str]:
    """A label, and beside it the lines of a text."""
    first, *rest = text.split("\n")
    yield f"    {label:<10}{first}".rstrip()
    yield from (f"{' ' * 14}{line}".rstrip() for line in rest)


def cut(text: str, longest: int) -> str:
    """The first characters of a text, and how many more there are."""
    more = len(text) - longest
    return text if more <= 0 else f"{text[:longest]}… ({more} characters more: --full)"


def _tokens(call: ModelCall) -> Iterator[str]:
    """Ids of the prompt, and of the answer with their log-probabilities."""
    if call.response_token_ids is None:
        yield "    tokens    unknown: the server gave no ids"
        return
    logprobs: Sequence[float | None] = call.response_logprobs or [None] * len(
        call.response_token_ids
    )
    given = " ".join(map(str, call.prompt_token_ids or ()))
    yield from indented("prompt", given or "unknown")
    pairs = zip(call.response_token_ids, logprobs, strict=True)
    sampled = (f"{one}" if at is None else f"{one}:{at:.3g}" for one, at in pairs)
    yield from indented("sampled", " ".join(sampled))


def failure(attempt: Attempt) -> Iterator[str]:
    """The error of an attempt that has one: where, what, and its traceback."""
    error = attempt.error
    assert error is not None
    where = place_of(error.traceback)
    yield f"failed in the {error.boundary}{f', {where}' if where else ''}"
    yield from indented("error", printable(f"{error.type}: {error.message}"))
    if error.traceback:
        yield from (f"    {line}" for line in printable(error.traceback.rstrip()).split("\n"))


def waterfall(spans: Iterable[Span]) -> Iterator[str]:
    """A bar per span, over the time of all."""
    ordered = sorted(spans, key=lambda span: (span.start_time or 0, span.sequence_id))
    begin = min(span.start_time or 0 for span in ordered)
    end = max(span.end_time or span.start_time or 0 for span in ordered)
    whole = max(end - begin, 1e-9)
    yield f"time     {whole:.3g} s"
    for span in ordered:
        start = (span.start_time or 0) - begin
        stop = max(start, (span.end_time or 0) - begin)
        left = min(int(BAR_WIDTH * start / whole), BAR_WIDTH - 1)
        length = max(1, round(BAR_WIDTH * (stop - start) / whole))
        bar = f"{' ' * left}{'█' * min(length, BAR_WIDTH - left)}".ljust(BAR_WIDTH)
        failed = " ERROR" if span.status.status_code == "ERROR" else ""
        yield f"  {stop - start:8.3f} s |{bar}| {cut(printable(span.name), 60)}{failed}"
