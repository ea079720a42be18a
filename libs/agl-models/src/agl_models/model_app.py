"""``ModelApp``: the addresses of a server of one model, for servers of plugins."""

import asyncio
import hmac
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from typing import Any, Generic

from agl_http.layers import JSON, Receive, Scope, Send, disconnected, header, read_body, send_whole
from agl_models.completions import Request, RequestError, dumps, parse_request


class ModelApp(ABC, Generic[Request]):
    """An application with ``/v1/chat/completions``, ``/v1/models``, ``/tokenize``, ``/health``.

    Args:
        model_name: What requests must ask for.
        api_key: What requests must carry; None takes all.
    """

    request_type: type[Request]
    """What the server can do."""
    owner: str
    """The owner in the list of models."""
    title: str
    """The server's name in messages."""
    explained: Mapping[str, str] = {}
    """Field of a request -> what to say when it is wrong."""
    max_body_bytes: int = 2**26

    def __init__(self, model_name: str, api_key: str | None = None) -> None:
        self.model_name = model_name
        self._authorization = None if api_key is None else f"Bearer {api_key}".encode()

    @abstractmethod
    async def answer(self, request: Request, scope: Scope, send: Send) -> None:
        """Answer a request for this model.

        Args:
            request: Its body.
            scope: The request's ASGI scope, with its headers.
            send: Takes the answer.

        Raises:
            RequestError: It is refused; nothing was sent yet.
        """

    def prompt(self, request: Request) -> list[int]:
        """Token ids of a request's prompt, for ``/tokenize``.

        Raises:
            RequestError: It has none; or this server does not say them.
        """
        raise RequestError(404, f"{self.title} counts no tokens before it answers")

    async def start(self) -> None:
        """Called in the event loop before the first request."""

    async def close(self) -> None:
        """Called after the last request."""

    def card(self) -> dict[str, Any]:
        """What the list of models says of this one, beside the usual."""
        return {}

    def health(self) -> dict[str, Any]:
        """What ``/health`` says beside ``status``."""
        return {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the server's start and end."""
        if scope["type"] == "lifespan":
            await receive()
            await self.start()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self.close()
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http":
            try:
                await self._route(scope, receive, send)
            except RequestError as error:
                await send_whole(send, error.status, error.body(), JSON)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = (scope["method"], scope["path"])
        if route == ("GET", "/health"):
            await send_whole(send, 200, dumps({"status": "ok", **self.health()}), JSON)
            return
        if self._authorization is not None and not hmac.compare_digest(
            header(scope, b"authorization"), self._authorization
        ):
            raise RequestError(401, "wrong or missing API key", "invalid_api_key")
        if route == ("POST", "/v1/chat/completions"):
            request = await self._request(receive)
            if request is not None:
                await _until_gone(self.answer(request, scope, send), receive)
        elif route == ("POST", "/tokenize"):
            request = await self._request(receive)
            if request is not None:
                ids = self.prompt(request)
                await send_whole(send, 200, dumps({"count": len(ids), "tokens": ids}), JSON)
        elif route == ("GET", "/v1/models"):
            about = {"object": "model", "created": 0, "owned_by": self.owner}
            card = {"id": self.model_name, **about, **self.card()}
            await send_whole(send, 200, dumps({"object": "list", "data": [card]}), JSON)
        else:
            raise RequestError(
                404,
                f"no such address: {route[0]} {route[1]}; this server has "
                "POST /v1/chat/completions, POST /tokenize, GET /v1/models and GET /health",
            )

    async def _request(self, receive: Receive) -> Request | None:
        try:
            body = await read_body(receive, self.max_body_bytes)
        except OverflowError as error:
            message = f"{error}; this server takes {self.max_body_bytes}"
            raise RequestError(413, message) from None
        if body is None:
            return None
        request = parse_request(self.request_type, body, self.title, self.explained)
        if request.model != self.model_name:
            raise RequestError(
                404,
                f"unknown model {request.model!r}; this server has {self.model_name!r}",
                "model_not_found",
            )
        return request


async def _until_gone(answer: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Give an answer, and break it off when nobody waits for it any more."""
    answering = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            answering.result()
    finally:
        for task in (answering, gone):
            task.cancel()
        await asyncio.gather(answering, gone, return_exceptions=True)
