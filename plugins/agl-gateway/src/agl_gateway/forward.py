"""Brings the answer of a backend to the agent, whole or as a stream."""

from collections.abc import Callable, Mapping

from agl_gateway.answers import assemble
from agl_gateway.asgi import JSON, Headers, Reply
from agl_gateway.backends import Answer
from agl_gateway.dialect import Exchange
from agl_gateway.errors import NOT_JSON, BrokenOffError, RefusedError, kind_of_status, shorten
from agl_gateway.normalizer import read_whole
from agl_gateway.records import CallRecord

EVENT_STREAM = "text/event-stream"
NO_BODY = (204, 205, 304)
"""Passed on with a body, they would break the next answer on the connection."""
PASSED_HEADERS = ("retry-after", "x-request-id")


End = Callable[..., None]
"""Called when a call is over: with its error, if there was one, and whose fault it was."""


async def relay(
    answer: Answer,
    exchange: Exchange,
    record: CallRecord,
    reply: Reply,
    end: End,
    error_body: Callable[[RefusedError], bytes],
) -> None:
    """Pass an answer on, and keep it for the record.

    ``end`` is called before the last byte goes out: who has an answer and then flushes, finds its
    span.

    Raises:
        RefusedError: It is nothing that could be passed on; nothing has been sent yet.
    """
    record.status_code = answer.status
    kind = answer.headers.get("content-type", "")
    is_stream, is_good = kind.startswith(EVENT_STREAM), 200 <= answer.status < 300
    if is_good and is_stream != exchange.is_stream and answer.status not in NO_BODY:
        asked, came = ("a stream", "none") if exchange.is_stream else ("no stream", "one")
        message = f"the backend was asked for {asked}, and sent {came}: {kind or 'no content type'}"
        raise RefusedError(502, message)
    if is_good and is_stream:
        await _relay_stream(answer, exchange, record, reply, end)
        return
    try:
        body = await answer.read()
    except BrokenOffError as error:
        raise RefusedError(502, f"the backend broke off its answer: {error}") from None
    if answer.status in NO_BODY:
        message = f"the backend answered {answer.status}, which has no body; expected an answer"
        raise RefusedError(502, message)
    if not is_good:
        message = f"the backend answered {answer.status}: {shorten(body)}"
        end(message, kind_of_status(answer.status))
        refused = RefusedError(answer.status, message, backend_body=body)
        await reply.whole(answer.status, error_body(refused), [*JSON, *_passed(answer.headers)])
        return
    record.answer = body
    try:
        whole = read_whole(body)
        record.answer = whole.body
        passed = exchange.whole(whole)
    except NOT_JSON as error:
        raise RefusedError(
            502,
            f"the backend answered {answer.status} with {kind or 'no content type'}, which is no "
            f"answer to this call ({error}): {shorten(body)}",
        ) from None
    end(None)
    await reply.whole(200, passed, [*JSON, *_passed(answer.headers)])


async def _relay_stream(
    answer: Answer, exchange: Exchange, record: CallRecord, reply: Reply, end: End
) -> None:
    chunks = record.chunks = []
    failure: str | None = None
    is_done = False
    await reply.start(200, [(b"content-type", EVENT_STREAM.encode()), *_passed(answer.headers)])
    try:
        async for chunk in answer.chunks:
            chunks.append(chunk)
            record.last_piece_time = record.now()
            passed = exchange.chunk(chunk)
            if exchange.is_over and not is_done:
                is_done = True
                end(exchange.failure)
                await reply.settle()
            # What agents get may be empty while an event is incomplete.
            if passed:
                if record.first_token_time is None and b"data:" in passed:  # no mere comment
                    record.first_token_time = record.now()
                await reply.write(passed)
    except BrokenOffError as error:
        failure = f"the backend broke off the stream: {error}"
    rest = b"" if failure else exchange.end()
    if not is_done:
        failure = failure or exchange.failure or assemble(chunks, record.request).problem()
        end(failure)
        if failure is not None:
            rest += exchange.broken(502, failure)
    await reply.end(rest)


def _passed(headers: Mapping[str, str]) -> Headers:
    return [
        (name.encode(), headers[name].encode("latin-1"))
        for name in PASSED_HEADERS
        if name in headers
    ]
