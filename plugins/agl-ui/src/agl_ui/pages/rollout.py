"""One rollout: what was said, what became of each token, why it failed, and when what happened."""

import asyncio
import json
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from agl.errors import ConfigError
from agl.types import Attempt, Span
from agl_records.calls.reader import recorded_parts
from agl_records.row_builder import image_urls
from agl_records.training_data import ModelCall
from agl_records.types import EXCLUSION_REASONS
from agl_runs.user_code import place_of
from agl_ui.data_sources import DataSource
from agl_ui.images import decoded
from agl_ui.live import state_of
from agl_ui.pages.conversation import COLOURS, MOST_CHARACTERS, MOST_TOKENS, MOST_TURNS, turns_of
from agl_ui.pages.page import Page, whole_number
from agl_ui.pages.spans import Window, window
from agl_ui.read_only_store import DAMAGE
from agl_ui.token_texts import texts_of
from agl_views.explanations.rollout_view import Shown, find_rollout, show, text_of
from agl_views.explanations.token_explanation import explain_token
from agl_views.explanations.trace_reader import MOST_CALLS, Part
from agl_views.tables.file_store import file_of

MOST_RAW = 64 * 1024 * 1024
MOST_ATTRIBUTES = 200
SANDBOX = "default-src 'none'; sandbox"
"""Of what a model wrote, by itself: a browser runs nothing of it."""


async def write(request: Request, source: DataSource) -> Page:
    """The page of one rollout."""
    if damage := DAMAGE.get():
        damage.spans = True  # the page says that what counted may be among them
    given = request.query_params
    number, step = whole_number(request, "attempt"), whole_number(request, "step")
    rollout = await find_rollout(source.store, request.path_params["rollout_id"])
    state = await state_of(source, rollout.rollout_id)
    token, call_id = whole_number(request, "token"), given.get("call", "")
    turn = whole_number(request, "turn", 1) or 1
    # One more than is shown, for what was heard before. Why a token got what it got depends on
    # other calls as well.
    read = Part(max(0, turn - 2), MOST_TURNS + 1)
    if token is not None:
        read = Part(max(0, turn - MOST_CALLS // 2))
    shown = await show(source.store, rollout.rollout_id, number, step, read=read)
    attempts = list(await source.store.query_attempts(rollout.rollout_id))
    attempt, told = shown.attempt, shown.explanation
    colour = given.get("colour", "logprob")
    if colour not in COLOURS:
        raise HTTPException(400, f"colour={colour[:50]!r}: expected one of {', '.join(COLOURS)}")
    found = None
    if token is not None:
        found = await explain_token(
            source.store, shown.chain, call_id, token, again="again" in given
        )
    if given.get("again", "1") != "1":
        raise HTTPException(400, f"again={given['again'][:50]!r}: expected 1")
    if turn > max(1, shown.num_calls):
        raise ConfigError(f"turn={turn}: there are {shown.num_calls} model calls")
    if call_id and shown.chain.trace.is_whole and call_id not in shown.chain.calls:
        raise ConfigError(f"call={call_id[:50]!r}: rollout {rollout.rollout_id!r} has no such call")
    begin = whole_number(request, "tokens", (token or 0) // MOST_TOKENS * MOST_TOKENS) or 0
    first = _first_turn(shown, turn, call_id if found else "")
    spans = None
    if attempt is not None:
        spans = await window(source, attempt, at := whole_number(request, "spans", 0) or 0)
        if at and at >= spans.total:
            raise ConfigError(
                f"spans={at}: the attempt has {spans.total} spans, the first one is 0"
            )
    address = f"rollouts/{quote(rollout.rollout_id, safe='')}"
    texts = await texts_of(source, rollout)
    names = ("attempt", "step", "colour", "turn", "spans", "span", "call", "tokens", "token")
    values = {
        "title": f"Rollout {rollout.rollout_id}",
        "rollout": rollout,
        "shown": shown,
        "attempt": attempt,
        "attempts": [_beside(one, shown) for one in attempts],
        "told": told,
        "trace": shown.chain.trace,
        "turns": await run_in_threadpool(
            turns_of, shown, address, colour, first, {call_id: begin}, texts
        ),
        "first_turn": first,
        "num_turns": shown.num_calls,
        "most_turns": MOST_TURNS,
        "most_tokens": MOST_TOKENS,
        "reasons": EXCLUSION_REASONS,
        "error_place": place_of(attempt.error.traceback) if attempt and attempt.error else None,
        "spans": spans,
        "span": await _span(source, attempt, given.get("span", "")),
        "why": found,
        "chosen": {name: given[name] for name in names if given.get(name)},
        "tokens_of": call_id,
        "tokens_from": begin,
        "colour": colour,
        "colours": COLOURS,
        "task": text_of(rollout.input),
        "most": MOST_CHARACTERS,
        "address": address,
        "store_option": _store_option(source),
    }
    about = rollout.rollout_id
    return Page("rollout.html", values, source, "rollouts", state=state, about=about)


def _store_option(source: DataSource) -> tuple[str, str] | None:
    """How a command names this store; None where none can, as it is in memory."""
    if (file := source.file or file_of(source.store)) is not None:
        return "--path", str(file)
    return ("--url", source.title) if "://" in source.title else None


def _first_turn(shown: Shown, asked: int, call_id: str) -> int:
    """The number of the first call that is shown: of those asked for, or with the one chosen."""
    begin = shown.chain.trace.first_call
    numbers = [at for at, call in enumerate(shown.calls, begin) if call.call_id == call_id]
    if numbers:
        return numbers[0] // MOST_TURNS * MOST_TURNS + 1
    return max(1, min(asked, begin + len(shown.calls)))


def _beside(attempt: Attempt, shown: Shown) -> dict[str, Any]:
    """An attempt as it stands beside the others."""
    calls = [call for call in shown.chain.calls.values() if call.attempt_id == attempt.attempt_id]
    answers = [call.response for call in calls if call.response]
    last = answers[-1] if answers and shown.chain.trace.is_whole else {}
    return {
        "attempt": attempt,
        "rewards": [
            one for one in shown.explanation.rewards if one.attempt_id == attempt.attempt_id
        ],
        # Of a long trace, only some calls were read.
        "num_calls": len(calls) if shown.chain.trace.is_whole else None,
        "answer": text_of(last.get("content") or "") if last else "",
    }


async def _span(source: DataSource, attempt: Attempt | None, span_id: str) -> dict[str, Any] | None:
    """The span that was chosen, with what it holds."""
    if attempt is None or not span_id:
        return None
    ids = (attempt.rollout_id, attempt.attempt_id)
    found = await source.store.query_spans(*ids, span_id=span_id, limit=1)
    if not found:
        raise ConfigError(f"attempt {attempt.attempt_id!r} has no span {span_id[:100]!r}")
    span: Span = found[0]
    attributes = list(span.attributes.items())
    return {
        "span": span,
        "attributes": attributes[:MOST_ATTRIBUTES],
        "more": max(0, len(attributes) - MOST_ATTRIBUTES),
        "events": span.events[:MOST_ATTRIBUTES],
        "more_events": max(0, len(span.events) - MOST_ATTRIBUTES),
    }


async def spans(request: Request, source: DataSource) -> Page:
    """A window of an attempt's spans by itself, for a page that is scrolled."""
    rollout_id = request.path_params["rollout_id"]
    number = whole_number(request, "attempt")
    attempts = {one.sequence_id: one for one in await source.store.query_attempts(rollout_id)}
    attempt = attempts.get(number or max(attempts, default=0))
    if attempt is None:
        raise ConfigError(f"rollout {rollout_id!r} has no attempt {number}")
    found: Window = await window(source, attempt, whole_number(request, "from", 0) or 0)
    values = {"title": "Spans", "spans": found, "chosen": {"attempt": attempt.sequence_id}}
    return Page("spans.html", values, source)


async def explained(request: Request, source: DataSource) -> Response:
    """Why a token got what it got, for programs: as ``agl explain --json`` has it."""
    number, step = whole_number(request, "attempt"), whole_number(request, "step")
    token = whole_number(request, "token")
    if token is None:
        raise HTTPException(400, "token: expected the place of a token in the answer, from 0")
    given = request.query_params
    # As the page reads it: see ``write``.
    read = Part(max(0, (whole_number(request, "turn", 1) or 1) - MOST_CALLS // 2))
    shown = await show(source.store, request.path_params["rollout_id"], number, step, read=read)
    call_id = given.get("call", "")
    if call_id not in shown.chain.calls and not shown.chain.trace.is_whole:
        shown = await show(source.store, request.path_params["rollout_id"], number, step)
    found = await explain_token(source.store, shown.chain, call_id, token, again="again" in given)
    body = json.dumps(asdict(found), default=str).encode()
    return Response(body, media_type="application/json")


async def raw(request: Request, source: DataSource) -> Response:
    """A message whole, as text that no browser takes for anything else; or an image of it."""
    given = request.query_params
    rollout_id = request.path_params["rollout_id"]
    call_id, which = given.get("call", ""), given.get("message", "")
    read = Part(0, 1)
    shown = await show(source.store, rollout_id, whole_number(request, "attempt"), read=read)
    calls = list(shown.chain.calls.values())
    if call_id and not shown.chain.trace.is_whole:
        span_id = call_id.partition("#")[0]  # of several answers each has a number
        spans = await source.store.query_spans(shown.rollout.rollout_id, span_id=span_id)
        calls = [record.call for record in recorded_parts(spans)]
    call = next((one for one in calls if one.call_id == call_id), None)
    image = whole_number(request, "image")
    if image is not None:
        answer = await asyncio.to_thread(_image, shown, call, which, image)
    else:
        said = shown.rollout.input
        if which != "task":
            message = _message(shown, call, which)
            said = message.get("content") or message.get("refusal") or ""
        text = text_of(said)[:MOST_RAW]
        answer = PlainTextResponse(text.encode("utf-8", "backslashreplace"))
    answer.headers["Content-Security-Policy"] = SANDBOX
    return answer


def _image(shown: Shown, call: ModelCall | None, which: str, number: int) -> Response:
    urls = image_urls([_message(shown, call, which)])
    if number >= len(urls):
        raise ConfigError(f"rollout {shown.rollout.rollout_id!r} has no such image")
    try:
        kind, data = decoded(urls[number])
    except ValueError as error:
        raise HTTPException(400, str(error)) from None
    return Response(data, media_type=kind)


def _message(shown: Shown, call: ModelCall | None, which: str) -> dict[str, Any]:
    """One of the messages of a call, or its answer."""
    if call is not None and which == "answer" and call.response is not None:
        return call.response
    if call is not None and which.isascii() and which.isdigit() and len(which) < 10:
        number = int(which)
        if number < len(call.messages):
            return call.messages[number]
    raise ConfigError(f"rollout {shown.rollout.rollout_id!r} has no such text")
