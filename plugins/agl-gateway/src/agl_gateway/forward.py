"""Brings a call to its backend, and the answer back, whole or as a stream."""

import asyncio
import io
import json
from collections.abc import Callable, Mapping
from typing import Any, Self

import aiohttp

from agl_gateway.answers import Additions, StreamedAnswer, dumps
from agl_gateway.backends import Backend
from agl_gateway.errors import RefusedError, error_body, shorten
from agl_gateway.records import CallRecord
from agl_gateway.wire import Reply, event_data, server_sent_events

CONNECT_SECONDS = 10.0
RETRIED_STATUS = (429, 502, 503, 504)
LARGE_BODY = 2**19
"""From this size on the body goes out in pieces, which leaves the event loop to others."""
PASSED_HEADERS = ("content-type", "retry-after", "x-request-id")

End = Callable[[CallRecord, str | None], None]
"""Marks a record as ended, with the error if there was one."""


class Forwarder:
    """The client side of the gateway: one pool of connections for all backends.

    Args:
        num_retries: Further tries when a backend cannot be reached or answers 429, 502, 503 or
            504; the waits double, from 0.1 s. A stream that has begun is never tried again.
    """

    def __init__(self, num_retries: int) -> None:
        self._num_retries = num_retries

    async def __aenter__(self) -> Self:
        # No limit in time or number: the agent's deadline holds, not ours.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=2**18,
        )
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._session.close()

    async def forward(
        self, backend: Backend, record: CallRecord, additions: Additions, reply: Reply, end: End
    ) -> None:
        """One call, there and back.

        Raises:
            RefusedError: There is no answer that could be passed on; nothing has been sent yet.
        """
        body = additions.add_to(record.request, backend.model)
        async with await self._post(backend, body) as response:
            record.status_code = response.status
            if response.status == 200 and response.content_type == "text/event-stream":
                await _relay_stream(response, record, additions, reply, end)
            else:
                await _relay_whole(backend, response, record, additions, reply, end)

    async def _post(self, backend: Backend, body: bytes) -> aiohttp.ClientResponse:
        headers = {
            "content-type": "application/json",
            "accept-encoding": "identity",
            **backend.headers,
        }
        tries, stale, wait = 0, False, 0.1
        while True:
            try:
                response = await self._session.post(
                    backend.url,
                    data=body if len(body) < LARGE_BODY else io.BytesIO(body),
                    headers=headers,
                    allow_redirects=False,
                )
            except aiohttp.ServerDisconnectedError as error:
                # Most often a kept connection that the backend closed just now: try another one.
                failure = str(error) or type(error).__name__
                if not stale:
                    stale = True
                    continue
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                failure = str(error) or type(error).__name__
            else:
                if response.status not in RETRIED_STATUS or tries >= self._num_retries:
                    return response
                failure = ""
                response.release()
            if tries >= self._num_retries:
                raise RefusedError(
                    502,
                    f"the backend of model {backend.model_name!r} at {backend.url} cannot be "
                    f"reached after {tries + 1} tries: {failure}",
                )
            tries += 1
            await asyncio.sleep(wait)
            wait *= 2


async def _relay_whole(
    backend: Backend,
    response: aiohttp.ClientResponse,
    record: CallRecord,
    additions: Additions,
    reply: Reply,
    end: End,
) -> None:
    try:
        body = await response.read()
    except aiohttp.ClientError as error:
        raise RefusedError(
            502, f"the backend of model {backend.model_name!r} broke off its answer: {error}"
        ) from None
    answer = _answer(body)
    if response.status >= 400:
        message = f"the backend answered {response.status}: {shorten(body)}"
        end(record, message)
        if answer is None:
            body = error_body(response.status, message)
        headers = {**_headers(response), "content-type": "application/json"}
        await reply.whole(response.status, body, headers)
        return
    if answer is None or not _is_completion(answer):
        raise RefusedError(
            502,
            f"the backend of model {backend.model_name!r} answered {response.status} with "
            f"{response.content_type}, which is no chat completion: {shorten(body)}",
        )
    record.answer = answer
    if additions.callbacks:
        # The record keeps what the agent's copy loses.
        passed = {**answer, "choices": [dict(choice) for choice in answer["choices"]]}
        if additions.remove_from(passed):
            body = dumps(passed)
    end(record, None)
    await reply.whole(response.status, body, _headers(response))


async def _relay_stream(
    response: aiohttp.ClientResponse,
    record: CallRecord,
    additions: Additions,
    reply: Reply,
    end: End,
) -> None:
    answer = StreamedAnswer()
    failure: str | None = None
    try:
        await reply.start(200, _headers(response))
        async for events in server_sent_events(response.content.iter_any()):
            pieces = [_relay_event(event, answer, additions) for event in events]
            if event_data(events[-1]) == b"[DONE]":
                record.answer = answer.completion()
                end(record, _stream_error(answer))
            await reply.write(b"".join(pieces))
    except aiohttp.ClientError as error:
        failure = f"the backend broke off the stream: {str(error) or type(error).__name__}"
    finally:
        # Also when the client has gone: what came is recorded.
        record.answer = answer.completion()
    failure = failure or _stream_error(answer)
    end(record, failure)
    if failure is not None and answer.error is None:
        await reply.write(b"data: " + error_body(502, failure) + b"\n\n")
    await reply.end()


def _relay_event(event: bytes, answer: StreamedAnswer, additions: Additions) -> bytes:
    data = event_data(event)
    if not data or data == b"[DONE]":
        return event
    chunk = _answer(data)
    if chunk is None:
        answer.error = f"the backend sent an event that is not JSON: {shorten(data)}"
        return b"data: " + error_body(502, answer.error) + b"\n\n"
    answer.add(chunk)
    return b"data: " + dumps(chunk) + b"\n\n" if additions.remove_from(chunk) else event


def _stream_error(answer: StreamedAnswer) -> str | None:
    if answer.error is not None:
        return f"the backend reported an error in the stream: {answer.error}"
    return None if answer.is_complete else "the stream ended before the answer was complete"


def _answer(body: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(body)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _is_completion(answer: Mapping[str, Any]) -> bool:
    choices = answer.get("choices")
    return isinstance(choices, list) and all(isinstance(choice, dict) for choice in choices)


def _headers(response: aiohttp.ClientResponse) -> dict[str, str]:
    return {name: response.headers[name] for name in PASSED_HEADERS if name in response.headers}
