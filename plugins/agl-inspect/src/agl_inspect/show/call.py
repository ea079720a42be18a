"""One model call, or any other span, as people read it."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from agl.errors import ConfigError
from agl.store.base import LightningStore
from agl.types import Span
from agl.utils.text import printable
from agl_inspect.show.rollout import LONGEST_MESSAGE, cut, indented
from agl_records.training_data import ModelCall
from agl_records.types import EXCLUSION_REASONS
from agl_views.explanations.explanation import CallLine, explain
from agl_views.explanations.rollout_view import message_text, text_of
from agl_views.explanations.turns import answer_of


@dataclass(frozen=True)
class ShownSpan:
    """A span, and the model call that it records, where it records one."""

    span: Span
    calls: tuple[ModelCall, ...]
    """One per answer; none where the span is no call."""
    fates: dict[str, CallLine]
    """Call id -> what it got."""
    masks: dict[str, list[int]]
    """Call id -> per sampled token 1 where it was trained; only of calls in a row."""
    account: str
    """Whose account ``fates`` are: of which step, or nobody's."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "span": self.span.model_dump(mode="json"),
            "account": self.account,
            "calls": [
                {
                    **call.model_dump(mode="json"),
                    "fate": asdict(fate) if (fate := self.fates.get(call.call_id)) else None,
                    "mask": self.masks.get(call.call_id),
                }
                for call in self.calls
            ],
        }


async def show_span(
    store: LightningStore, rollout_id: str, attempt_id: str, span_id: str, step: int | None = None
) -> ShownSpan:
    """Read what is shown of a span.

    Raises:
        ConfigError: It is not there, or there is no account of that step.
    """
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
    fates = {one: line for one, line in whole.lines.items() if line.attempt_id == attempt_id}
    return ShownSpan(spans[0], calls, fates, masks, account)


def span_text(shown: ShownSpan, *, tokens: bool = False, full: bool = False) -> str:
    """Lines for people."""
    span = shown.span
    lines = [*_head(span)]
    for call in shown.calls:
        lines += _call(shown, call, tokens, full)
    if not shown.calls:
        lines += attributes_of(span, full)
    return "\n".join(lines)


def _head(span: Span) -> Iterator[str]:
    status = span.status.status_code
    why = f": {printable(span.status.description)}" if span.status.description else ""
    yield f"span     {span.span_id}, {printable(span.name)}: {status}{why}"
    yield f"of       {span.rollout_id}, attempt {span.attempt_id}, number {span.sequence_id}"
    if span.parent_id:
        yield f"under    span {span.parent_id}"
    if span.start_time is not None and span.end_time is not None:
        yield f"time     {span.end_time - span.start_time:.3f} s"


def attributes_of(span: Span, full: bool = False) -> Iterator[str]:
    """Attributes and events of a span, a value per line."""
    groups = [span.attributes, *(event.attributes for event in span.events)]
    names = ["", *(printable(event.name) for event in span.events)]
    for name, attributes in zip(names, groups, strict=True):
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


def _call(shown: ShownSpan, call: ModelCall, tokens: bool, full: bool) -> Iterator[str]:
    agent = f", agent {printable(call.agent_name)}" if call.agent_name else ""
    end = f", ended by {call.finish_reason}" if call.finish_reason else ""
    model = printable(call.requested_model or call.model or "unknown")
    version = f", weights {printable(call.model_version)}" if call.model_version else ""
    yield f"model    {model}{version}{agent}{end}"
    if call.response_id:
        yield f"answer   {printable(call.response_id)}"
    fate = shown.fates.get(call.call_id)
    if fate is not None:
        yield f"learned  {shown.account or 'no algorithm has accounted for it'}"
        yield from (f"  {printable(line)}" for line in call_text(fate)[1:])
    yield ""
    for tool in call.tools:
        yield from _tool(tool, full)
    for message in (*call.messages, *answer_of(call)):
        role, text = message_text(message)
        yield from indented(role, text if full else cut(text, LONGEST_MESSAGE))
    if call.error:
        yield from indented("error", printable(call.error))
    if tokens:
        yield ""
        yield from _tokens(call, shown.masks.get(call.call_id))


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


def _tokens(call: ModelCall, mask: list[int] | None) -> Iterator[str]:
    """A line per sampled token: place, id, log-probability, whether it was trained."""
    if call.response_token_ids is None:
        yield "    tokens    unknown: the server gave no ids"
        return
    given = " ".join(map(str, call.prompt_token_ids or ()))
    yield from indented("prompt", given or "unknown")
    yield "    sampled   place  id  log-probability  mask"
    size = len(call.response_token_ids)
    logprobs = call.response_logprobs or [None] * size
    rows = zip(call.response_token_ids, logprobs, mask or [0] * size, strict=False)
    for place, (one, logprob, kept) in enumerate(rows):
        at = "unknown" if logprob is None else f"{logprob:.4f}"
        yield f"              {place:>5}  {one:>6}  {at:>9}  {kept}"


def call_text(call: CallLine) -> list[str]:
    """What one call got and why, a fact per line."""
    agent = f", agent {call.agent_name!r}" if call.agent_name else ""
    tokens = f", sampled tokens {call.tokens[0]} to {call.tokens[1] - 1}" if call.tokens else ""
    lines = [f"  call     {call.call_id} of attempt {call.attempt_id}{agent}{tokens}"]
    if call.rule or call.because:
        got = "no reward" if call.reward is None else f"{call.reward:.4g}"
        of = f" (from span {', '.join(call.sources)})" if call.sources else ""
        lines.append(f"  credit   {got} by rule {call.rule!r}: {call.because}{of}")
    if call.advantage is not None:
        group = call.group or "all calls of the sibling rollouts"
        lines.append(f"  group    {group}")
        lines.append(f"  advantage {call.advantage:+.4g}: {call.advantage_because}")
    if call.excluded is not None:
        meaning = EXCLUSION_REASONS[call.excluded]
        detail = f" ({call.detail})" if call.detail else ""
        lines.append(f"  excluded {call.excluded}: {meaning}{detail}")
    return lines
