# pyright: standard
"""Which of several answers to one request the agent used.

That is the one which the agent named (``agl.emit_choice``); else the one with which a later call of
the attempt goes on, by its tokens or as an assistant's message. Answers that say the same are one
answer: that one stands for it with whose tokens a later call goes on, else the first that was not
cut off. Where none of this tells, or several
were gone on with, it is not known, and nothing is guessed: what an agent emits, or returns from an
operation, may be an answer that it rejects.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from agl.semconv import LightningSpanAttributes, ModelCallAttributes
from agl.types import Span
from agl.utils.json_values import parse_json
from agl.utils.otel import LinkMatch, extract_links_from_attributes
from agl_records.calls.span_tree import ordered
from agl_records.training_data import ModelCall

CHOSEN = LightningSpanAttributes.CHOSEN.value

_Saying = tuple[Any, ...]
"""What an answer says, so that answers can be compared."""


def decided(calls: Sequence[ModelCall], spans: Sequence[Span]) -> list[ModelCall]:
    """The calls of one attempt in order, those with several answers with the one that was used.

    The last time that an agent names a call's choice counts. Some servers give one id to many
    answers: then the last call of that id before the name, by their numbers, is the one that is
    meant, and none where others of that id ran beside it.
    """
    named: dict[int, int | str] = {}
    """Position of a call -> the choice of it that the agent named, or why that is not known."""
    for span in ordered(spans):
        number = span.attributes.get(CHOSEN)
        if type(number) is not int or number < 0:
            continue
        meant = _linked(span, calls)
        place = span.sequence_id or math.inf
        before = [n for n in meant if calls[n].sequence_id < place]
        candidates = meant
        if before:  # the last one, and those that had not ended when it began
            start = calls[before[-1]].start_time or -math.inf
            candidates = [n for n in before[:-1] if (calls[n].end_time or math.inf) > start]
            candidates.append(before[-1])
        if len(candidates) == 1:
            named[candidates[0]] = number
        else:
            why = f"the agent named an answer, and {len(candidates)} calls may have been meant"
            named.update(dict.fromkeys(candidates, why))
    return [
        _decided(call, calls[number + 1 :], named.get(number)) if call.choices else call
        for number, call in enumerate(calls)
    ]


def _decided(call: ModelCall, later: Sequence[ModelCall], named: int | str | None) -> ModelCall:
    number, why = _choice(call, later, named)
    if number is None:
        return call.model_copy(update={"unchosen": why})
    used = {"call_id": call.call_id, "choices": call.choices}
    return call.part(number).model_copy(update=used)


def _choice(
    call: ModelCall, later: Sequence[ModelCall], named: int | str | None
) -> tuple[int | None, str]:
    count = len(call.choices)
    if isinstance(named, str):
        return None, named
    if named is not None:
        if named < count:
            return named, ""
        return None, f"the agent named answer {named} of {count}, from 0"
    sayings = [
        ("tokens", *(one.token_ids or ())) if one.response is None else _said(one.response)
        for one in call.choices
    ]
    used = set(sayings)
    if len(used) > 1:
        used = {saying for other in later if (saying := _gone_on_with(call, sayings, other))}
    if len(used) == 1:
        (said,) = used
        return _that_says(said, call, sayings, later), ""
    if used:
        return None, f"the agent went on with {len(used)} of its {count} answers"
    return None, (
        f"no later call goes on with one of its {count} answers, and the agent named none "
        "(agl.emit_choice)"
    )


def _that_says(
    said: _Saying, call: ModelCall, sayings: Sequence[_Saying], later: Sequence[ModelCall]
) -> int:
    """Which of the answers that say this stands for them."""
    same = [number for number, saying in enumerate(sayings) if saying == said]
    if len(same) == 1:
        return same[0]
    lengths = [_continued(call, other) for other in later]
    continued = {number: max((each[number] for each in lengths), default=0) for number in same}
    return max(same, key=lambda n: (continued[n], call.choices[n].finish_reason != "length", -n))


def _continued(call: ModelCall, other: ModelCall) -> list[int]:
    """Per answer with how many tokens of it another call goes on; 0 where not with all of them."""
    given, prompt = call.prompt_token_ids or [], other.prompt_token_ids or []
    if not given or prompt[: len(given)] != given:
        return [0] * len(call.choices)
    said = prompt[len(given) :]
    answers = [choice.token_ids or [] for choice in call.choices]
    return [len(ids) if said[: len(ids)] == ids else 0 for ids in answers]


def _linked(span: Span, calls: Sequence[ModelCall]) -> list[int]:
    """The positions of the calls that match all links of a span."""
    try:
        links = extract_links_from_attributes(span.attributes)
    except ValueError:
        return []
    is_meant = (bool(links) and all(_is_of(link, call) for link in links) for call in calls)
    return [n for n, meant in enumerate(is_meant) if meant]


def _is_of(link: LinkMatch, call: ModelCall) -> bool:
    ids = {"span_id": call.call_id, ModelCallAttributes.RESPONSE_ID.value: call.response_id}
    return link.key_match in ids and ids[link.key_match] == link.value_match


def _gone_on_with(call: ModelCall, sayings: Sequence[_Saying], other: ModelCall) -> _Saying | None:
    """Which answer another call goes on with; None for none."""
    continued = _continued(call, other)
    if any(continued):
        return sayings[continued.index(max(continued))]
    asked = call.messages
    new = (
        other.messages[len(asked) :]
        if other.messages[: len(asked)] == asked
        else [message for message in other.messages if message not in asked]
    )
    said = {_said(message) for message in new if message.get("role") == "assistant"}
    return next((saying for saying in sayings if saying in said), None)


def _said(message: Mapping[str, Any]) -> _Saying:
    """Text and tool calls; clients write the rest, ids and blanks at the ends, as they like."""
    content = message.get("content") or ""
    text = content.strip() if isinstance(content, str) else _written(content)
    calls: Any = message.get("tool_calls") or []
    return (text, *map(_calling, calls)) if isinstance(calls, list) else (text, _written(calls))


def _calling(call: Any) -> _Saying:
    function: Any = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return (_written(call),)
    return _written(function.get("name")), _arguments(function.get("arguments"))


def _arguments(given: Any) -> str:
    try:
        return _written(parse_json(given))
    except ValueError:  # no JSON, or no text
        return _written(given)


def _written(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
