"""One rollout: what was said, what became of each token, why it failed, and when what happened."""

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import PlainTextResponse

from agl.errors import ConfigError
from agl.types import EXCLUSION_REASONS, Span
from agl_learning.explanation import CallLine, RewardLine
from agl_learning.records import ModelCall
from agl_learning.showing import Shown, place_of, show, text_of, tool_calls
from agl_ui.pages.page import Page, whole_number
from agl_ui.places import Places

MOST_CHARACTERS = 4_000
"""Of one message; the rest is a click away."""
MOST_TOKENS = 1_000
"""Of one answer."""
MOST_RAW = 64 * 1024 * 1024


@dataclass
class Said:
    """A message as it is shown."""

    role: str
    text: str
    more: int
    """Characters that are left out."""
    raw: str
    """Where the whole text is."""
    images: list[str] = field(default_factory=list[str])
    calls: list[str] = field(default_factory=list[str])


@dataclass
class Turn:
    """A model call as it is shown."""

    number: int
    call: ModelCall
    fate: CallLine | None
    num_before: int
    """Messages that stood in the call before as well."""
    messages: list[Said]
    answer: Said | None
    tokens: list["Token"]
    num_more: int
    """Tokens that are not shown."""


@dataclass(frozen=True)
class Token:
    """A token that the model sampled."""

    place: int
    """In its answer, from 0."""
    token_id: int
    logprob: float | None

    @property
    def kind(self) -> str:
        """The class of its colour: the less likely it was, the stronger."""
        if self.logprob is None:
            return "unsaid"
        return f"p{sum(self.logprob < limit for limit in (-0.1, -0.7, -1.6, -3.0))}"


@dataclass(frozen=True)
class Why:
    """Where a token's advantage comes from, in the words of ``agl explain``."""

    token: Token
    call: ModelCall
    fate: CallLine | None
    rewards: list[RewardLine]
    row: int | None
    position: int | None
    """In that row."""
    num_shared: int
    """Tokens of the answer, which all have this advantage."""


async def write(request: Request, places: Places) -> Page:
    """The page of one rollout."""
    place = places.get(request.path_params["key"])
    state = await place.state()
    number, step = whole_number(request, "attempt"), whole_number(request, "step")
    shown = await show(place.store, request.path_params["rollout_id"], number, step)
    rollout = shown.rollout
    place_in_answer = whole_number(request, "token")
    attempts = list(await place.store.query_attempts(rollout.rollout_id))
    turns = _turns(shown, f"rollouts/{quote(rollout.rollout_id, safe='')}")
    values = {
        "title": f"Rollout {rollout.rollout_id}",
        "rollout": rollout,
        "shown": shown,
        "attempt": shown.attempt,
        "attempts": attempts,
        "told": shown.explanation,
        "turns": turns,
        "reasons": EXCLUSION_REASONS,
        "error_place": place_of(shown.attempt.error.traceback)
        if shown.attempt and shown.attempt.error
        else None,
        "waterfall": waterfall(shown.spans),
        "why": why(shown, request.query_params.get("call", ""), place_in_answer)
        if place_in_answer is not None
        else None,
        "task": text_of(rollout.input),
        "most": MOST_CHARACTERS,
    }
    return Page("rollout.html", values, place, "rollouts", state=state)


def _turns(shown: Shown, address: str) -> list[Turn]:
    turns: list[Turn] = []
    heard: list[dict[str, Any]] = []
    for number, call in enumerate(shown.calls, 1):
        same = _num_same(call.messages, heard)
        raw = f"{address}/raw?call={quote(call.call_id, safe='')}"
        messages = [
            said(message, f"{raw}&message={index}")
            for index, message in enumerate(call.messages)
            if index >= same
        ]
        answer = [{"role": "assistant", **call.response}] if call.response else []
        fate = shown.fates.get(call.call_id)
        spoken = said(answer[0], f"{raw}&message=answer") if answer else None
        tokens = tokens_of(call)
        more = max(0, len(tokens) - MOST_TOKENS)
        turn = Turn(number, call, fate, same, messages, spoken, tokens[:MOST_TOKENS], more)
        turns.append(turn)
        heard = [*call.messages, *answer]
    return turns


def tokens_of(call: ModelCall) -> list[Token]:
    """What was sampled; nothing where the server told no ids."""
    ids = call.response_token_ids or []
    logprobs = call.response_logprobs or []
    return [
        Token(place, token_id, logprobs[place] if place < len(logprobs) else None)
        for place, token_id in enumerate(ids)
    ]


def why(shown: Shown, call_id: str, place: int) -> Why:
    """What became of a token.

    Raises:
        ConfigError: There is no such call, or its answer is shorter.
    """
    call = next((one for one in shown.calls if one.call_id == call_id), None)
    tokens = tokens_of(call) if call is not None else []
    if call is None or place >= len(tokens):
        raise ConfigError(
            f"rollout {shown.rollout.rollout_id!r} has no token {place} in a call {call_id!r} of "
            "this attempt"
        )
    fate, row, position = shown.fates.get(call_id), None, None
    for lines in shown.explanation.rows:
        if fate is not None and fate.tokens and fate in lines.calls:
            row, position = lines.number, fate.tokens[0] + place
    sources = fate.sources if fate is not None else ()
    rewards = [one for one in shown.explanation.rewards if one.span_id in sources]
    return Why(tokens[place], call, fate, rewards, row, position, len(tokens))


def _num_same(messages: list[dict[str, Any]], heard: list[dict[str, Any]]) -> int:
    """How many messages a call begins with that were said before; all of those, or none."""

    def bare(message: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in message.items() if value not in (None, "", [], ())}

    before = [bare(one) for one in messages[: len(heard)]]
    return len(heard) if heard and before == [bare(one) for one in heard] else 0


def said(message: dict[str, Any], raw: str) -> Said:
    """A message, cut to what a page bears."""
    content: Any = message.get("content") or message.get("refusal") or ""
    images: list[str] = []
    if isinstance(content, list):
        for part in content:
            given = part.get("image_url") if isinstance(part, dict) else None
            url = given.get("url") if isinstance(given, dict) else given
            # Only what stands in the message itself: nothing is loaded from elsewhere.
            if isinstance(url, str) and url.startswith(IMAGES):
                images.append(url)
    text = text_of(content) if content else ""
    role = str(message.get("role") or "?")
    return Said(
        role,
        text[:MOST_CHARACTERS],
        max(0, len(text) - MOST_CHARACTERS),
        raw,
        images,
        [one[:MOST_CHARACTERS] for one in tool_calls(message)],
    )


IMAGES = tuple(f"data:image/{kind};base64," for kind in ("png", "jpeg", "gif", "webp"))
"""How images begin that are shown; an SVG is a program."""


@dataclass
class Bar:
    """A span on the clock of its attempt."""

    span: Span
    depth: int
    begin: float
    seconds: float
    left: float
    """Percent of the whole."""
    width: float
    """The same."""

    @property
    def is_bad(self) -> bool:
        """Whether it failed."""
        return self.span.status.status_code == "ERROR"


def waterfall(spans: list[Span]) -> list[Bar]:
    """Spans as a tree, each with its place on the clock of all."""
    timed = [span for span in spans if span.start_time is not None]
    if not timed:
        return []
    begin = min(span.start_time or 0.0 for span in timed)
    end = max(span.end_time or span.start_time or 0.0 for span in timed)
    whole = max(end - begin, 1e-9)
    ids = {span.span_id for span in timed}
    below: dict[str, list[Span]] = {}
    for span in sorted(timed, key=lambda span: (span.start_time or 0.0, span.sequence_id)):
        parent = span.parent_id if span.parent_id in ids and span.parent_id != span.span_id else ""
        below.setdefault(parent or "", []).append(span)
    bars: list[Bar] = []
    seen: set[str] = set()
    waiting = [(span, 0) for span in reversed(below.get("", []))]
    while waiting:
        span, depth = waiting.pop()
        if span.span_id in seen:
            continue
        seen.add(span.span_id)
        start = (span.start_time or 0.0) - begin
        length = max(0.0, (span.end_time or span.start_time or 0.0) - (span.start_time or 0.0))
        left = min(100.0 * start / whole, 99.5)
        width = min(max(100.0 * length / whole, 0.5), 100.0 - left)
        bars.append(Bar(span, depth, start, length, round(left, 3), round(width, 3)))
        waiting += [(one, depth + 1) for one in reversed(below.get(span.span_id, []))]
    return bars


async def raw(request: Request, places: Places) -> Page:
    """A message whole, as text that no browser takes for anything else."""
    place = places.get(request.path_params["key"])
    given = request.query_params
    shown = await show(place.store, request.path_params["rollout_id"], None, None)
    text = _raw_text(shown, given.get("call", ""), given.get("message", ""))
    answer = PlainTextResponse(text[:MOST_RAW].encode("utf-8", "backslashreplace"))
    answer.headers["Content-Security-Policy"] = "default-src 'none'; sandbox"
    return Page("", {}, answer=answer)


def _raw_text(shown: Shown, call_id: str, which: str) -> str:
    if which == "task":
        return text_of(shown.rollout.input)
    call = next((one for one in shown.calls if one.call_id == call_id), None)
    if call is not None and which == "answer" and call.response is not None:
        return text_of(call.response.get("content") or call.response.get("refusal") or "")
    if call is not None and which.isascii() and which.isdigit() and len(which) < 10:
        number = int(which)
        if number < len(call.messages):
            return text_of(call.messages[number].get("content") or "")
    raise ConfigError(f"rollout {shown.rollout.rollout_id!r} has no such text")
