"""Answers of a store server: JSON that is written and sent without holding up other requests."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic_core import to_json
from starlette.responses import Response

from agl.types import PaginatedResult
from agl.utils.text import clean
from agl_http import wire
from agl_http.layers import Receive, Scope, Send

RECORDS_AT_ONCE = 10
"""Of a page, written in one go."""
PIECE_BYTES = 2**18
"""A longer answer is sent in pieces."""


class Answer(Response):
    """A finished answer. Starlette's constructor costs more than most of what stands in one.

    A long one is written in its pieces, so that others get a turn in between.
    """

    def __init__(
        self,
        content: bytes | list[bytes],
        status: int = 200,
        headers: dict[str, str] | None = None,
        media_type: str = "application/json",
    ) -> None:
        pieces = [content] if isinstance(content, bytes) else content
        size = sum(map(len, pieces))
        self.pieces = pieces if size > PIECE_BYTES else [b"".join(pieces)]
        self.status_code, self.body, self.background = status, self.pieces[0], None
        length = b"%d" % size
        self.raw_headers = [(b"content-type", media_type.encode()), (b"content-length", length)]
        for name, value in (headers or {}).items():
            self.raw_headers.append((name.lower().encode(), value.encode()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **headers})
        for number, piece in enumerate(self.pieces, 1):
            more = number < len(self.pieces)
            await send({"type": "http.response.body", "body": piece, "more_body": more})


def json_answer(
    adapter: TypeAdapter[Any], value: Any, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Serialize once; FastAPI would validate the answer first."""
    content = b"null" if value is None else dumped(adapter, value)
    return Answer(content, status, headers)


def error_answer(
    status: int, detail: Any, error_type: str, headers: dict[str, str] | None = None
) -> Response:
    """An error in the form that every route uses."""
    body = to_json({"detail": detail, "error_type": error_type})
    return Answer(body, status, wire.RETRY_AFTER if status == 503 else headers)


async def record_json(
    adapter: TypeAdapter[Any], record: Any, show: Callable[[Any], Any] | None
) -> bytes | list[bytes]:
    """JSON of what ``show`` leaves; a page in pieces, so that others get a turn in between.

    Items of a page may be JSON already.
    """
    if record is None:
        return b"null"
    show = show or (lambda record: record)
    if not isinstance(record, PaginatedResult):
        return dumped(adapter, show(record))
    page = cast(PaginatedResult[Any], record)
    begin, pieces = b'{"items":[', list[bytes]()
    end = b'],"limit":%d,"offset":%d,"total":%d}' % (page.limit, page.offset, page.total)
    for number in range(0, len(page), RECORDS_AT_ONCE):
        items = page[number : number + RECORDS_AT_ONCE]
        if isinstance(items[0], bytes):
            text = b",".join(items)
        else:
            part = page.model_copy(update={"items": items})
            text = dumped(adapter, show(part))[len(begin) : -len(end)]
        pieces.append((b"," if pieces else begin) + text)
        if number + RECORDS_AT_ONCE < len(page):
            await asyncio.sleep(0)
    return [*(pieces or [begin]), end]


def dumped(adapter: TypeAdapter[Any], value: Any) -> bytes:
    """JSON; of what JSON cannot hold, which a store in memory may keep, the text of it."""
    try:
        return adapter.dump_json(value)
    except ValueError:
        return to_json(_readable(adapter.dump_python(value)), inf_nan_mode="null")


def _readable(value: Any) -> Any:
    if isinstance(value, dict):
        fields = cast(dict[Any, Any], value)
        return {_readable(str(key)): _readable(item) for key, item in fields.items()}
    if isinstance(value, list | tuple):
        return [_readable(item) for item in cast(Sequence[Any], value)]
    if isinstance(value, str):
        return clean(value)
    return value if isinstance(value, int | float | None) else ascii(value)
