"""What was said in an attempt, as people read it: messages, images, answers token by token."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from agl_records.row_builder import image_urls
from agl_records.training_data import ModelCall
from agl_ui.images import Image, image_of
from agl_ui.token_texts import Texts
from agl_views.explanations.explanation import CallLine
from agl_views.explanations.rollout_view import Shown, text_of, tool_calls
from agl_views.explanations.turns import answer_of, num_repeated

MOST_CHARACTERS = 4_000
"""Of one message; the rest is a click away."""
MOST_TOKENS = 1_000
"""Of one answer at a time."""
MOST_TURNS = 50
"""Model calls on one page."""
MOST_PARTS = 20
"""Images, or tools called, of one message."""
COLOURS = {"logprob": "log-probability", "mask": "mask", "advantage": "advantage"}
"""What tokens may be coloured by."""


@dataclass
class Said:
    """A message as it is shown."""

    role: str
    text: str
    more: int
    """Characters that are left out."""
    raw: str
    """Where the whole text is."""
    images: list[Image] = field(default_factory=list[Image])
    calls: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Token:
    """A token that the model sampled, or was given."""

    place: int
    """In its answer, from 0."""
    token_id: int
    logprob: float | None
    kind: str
    """The class of its colour."""
    text: str
    """Its number where its tokenizer is not known, or has no text for it alone."""


@dataclass
class Turn:
    """A model call as it is shown."""

    number: int
    """From 1, in the attempt."""
    call: ModelCall
    fate: CallLine | None
    """None where no algorithm has accounted for it."""
    num_before: int
    """Messages that stood in the call before as well."""
    messages: list[Said]
    answer: Said | None
    tokens: list[Token]
    num_tokens: int
    """Of the whole answer."""
    given: list[Token]
    """The last tokens of the prompt; only where the mask is shown."""
    has_texts: bool
    """Whether the tokenizer of its model is known."""

    @property
    def num_given(self) -> int:
        """Tokens of the prompt."""
        return len(self.call.prompt_token_ids or ())


def turns_of(
    shown: Shown,
    address: str,
    colour: str,
    first: int,
    tokens_from: Mapping[str, int],
    texts: Texts,
) -> list[Turn]:
    """The calls of one page.

    Args:
        shown: The rollout.
        address: Of the rollout's page.
        colour: What tokens are coloured by.
        first: Number of the first call that is shown, from 1.
        tokens_from: Call id -> the first of its tokens that is shown, from 0.
        texts: What tokens say.
    """
    turns: list[Turn] = []
    at = first - 1 - shown.chain.trace.first_call
    page = shown.calls[at : at + MOST_TURNS]
    previous = shown.calls[at - 1] if at > 0 and page else None
    for number, call in enumerate(page, first):
        same = num_repeated(call, previous)
        raw = f"{address}/raw?call={quote(call.call_id, safe='')}"
        begin = tokens_from.get(call.call_id, 0)
        # What nobody accounted for is open; the default adapter's opinion of it is no fate.
        fate = shown.outcomes.get(call.call_id) if shown.is_accounted else None
        given = (call.prompt_token_ids or [])[-MOST_TOKENS:] if colour == "mask" else []
        sampled = (call.response_token_ids or [])[begin : begin + MOST_TOKENS]
        before, known = (texts(call.served_model, ids) for ids in (given, sampled))
        turn = Turn(
            number,
            call,
            fate,
            same,
            [
                said(one, f"{raw}&message={at}")
                for at, one in enumerate(call.messages)
                if at >= same
            ],
            next((said(one, f"{raw}&message=answer") for one in answer_of(call)), None),
            tokens_of(call, fate, colour, begin, sampled, known),
            len(call.response_token_ids or ()),
            [Token(at, one, None, "given", _text(one, before, at)) for at, one in enumerate(given)],
            bool(known),
        )
        turns.append(turn)
        previous = call
    return turns


def tokens_of(
    call: ModelCall,
    fate: CallLine | None,
    colour: str,
    begin: int,
    ids: list[int],
    texts: list[str],
) -> list[Token]:
    """What was sampled from a place on; nothing where the server told no ids."""
    logprobs = (call.response_logprobs or [])[begin : begin + len(ids)]
    known = [*logprobs, *[None] * (len(ids) - len(logprobs))]
    return [
        Token(begin + at, one, logprob, _kind(colour, logprob, fate), _text(one, texts, at))
        for at, (one, logprob) in enumerate(zip(ids, known, strict=True))
    ]


def _text(token_id: int, texts: list[str], at: int) -> str:
    return (texts[at] if texts else "").replace("\n", "↵\n") or str(token_id)


def _kind(colour: str, logprob: float | None, fate: CallLine | None) -> str:
    if colour == "mask":
        return "open" if fate is None else "masked" if fate.excluded else "learned"
    if colour == "advantage":
        is_own = fate is not None and not fate.excluded and not fate.is_mean
        value = fate.advantage if fate is not None and is_own else None
        if value is None or not math.isfinite(value):
            return "unsaid"
        strength = sum(abs(value) > limit for limit in (0.0, 0.5, 1.0, 1.5))
        return f"{'up' if value > 0 else 'down'}{strength}"
    if logprob is None:
        return "unsaid"
    # The less likely, the stronger.
    return f"p{sum(logprob < limit for limit in (-0.1, -0.7, -1.6, -3.0))}"


def said(message: dict[str, Any], raw: str) -> Said:
    """A message, cut to what a page bears."""
    text = text_of(message.get("content") or message.get("refusal") or "")
    urls = enumerate(image_urls([message]))
    found = [image_of(url, f"{raw}&image={number}") for number, url in urls if url]
    return Said(
        str(message.get("role") or "?"),
        text[:MOST_CHARACTERS],
        max(0, len(text) - MOST_CHARACTERS),
        raw,
        found[:MOST_PARTS],
        [one[:MOST_CHARACTERS] for one in tool_calls(message)[:MOST_PARTS]],
    )
