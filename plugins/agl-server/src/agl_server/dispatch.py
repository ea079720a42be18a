"""One list of routes, served in two ways.

FastAPI describes every route and can answer it. What a route can read at once is answered without
FastAPI's machinery, which costs more than most of what stands in an answer; everything else goes on
to it, unchanged, so that what is taken and what is refused, and how, stands in one place.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from json import JSONDecodeError
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.routing import compile_path

from agl.errors import AglError
from agl.store import run_rules
from agl.store.patience import PATIENCE_SECONDS
from agl_http import wire
from agl_http.headers import RECEIVED, WRITER
from agl_http.layers import JSON, ROUTE, App, Receive, Scope, Send, answer, first, header
from agl_server.shapes import Shape

LARGE_BODY = 64 * 1024
"""Bytes; of larger ones FastAPI does not list all that is wrong, which costs far more than they."""


_writer = re.compile(rb"(\d{1,9}) ([\w.-]+)").fullmatch


class ShapelessError(Exception):
    """A large body is wrong; the message says where it is first."""


@dataclass(frozen=True)
class Route:
    """One way into the server."""

    verb: Literal["GET", "POST"]
    path: str
    """Parameters in braces; one with ``:path`` may hold slashes."""
    answer: Callable[..., Awaitable[Response]]
    """Takes the request, its body, and by name the parameters in the path."""
    answers: Any = None
    """Type of the answer, for the description."""
    status: int = 200
    """Of the answer, for the description."""
    body: Any = None
    """Type of the body, or of the query where the verb is GET."""
    may_be_empty: bool = False
    """Whether the body can be left out."""
    read: Callable[[bytes], Any] | None = None
    """Reads most bodies for less; a ValueError leaves one to the type of ``body``."""
    kind: bytes = JSON
    """Media type of what can be read at once; empty for any."""
    name: str = ""
    says: str = ""

    @property
    def takes_body(self) -> bool:
        """Whether there is one to parse."""
        return self.read is not None or self.body is not None

    @cached_property
    def _validate(self) -> Callable[[Any], Any]:
        return TypeAdapter(self.body).validate_python

    @cached_property
    def _shape(self) -> Shape:
        return Shape(self.body)

    def parse(self, body: bytes) -> Any:
        """Read a body.

        Raises:
            ValueError, RecursionError: It is wrong, or of a form that FastAPI may know.
            ShapelessError: It is large and wrong.
        """
        is_large = len(body) > LARGE_BODY
        if self.read is not None:
            try:
                return self.read(body)
            except ValueError:
                if not is_large:
                    raise
        value = wire.decode(body)
        if is_large and (problem := self._shape.problem(value)):
            raise ShapelessError(problem)
        return self._validate(value)

    @property
    def is_fast(self) -> bool:
        """Whether FastAPI can be spared; queries are its own art."""
        return self.verb == "POST" or self.body is None

    @cached_property
    def endpoint(self) -> Callable[..., Awaitable[Response]]:
        """What FastAPI calls, with a signature that it can read and describe."""

        async def endpoint(request: Request, body: Any = None, **ids: str) -> Response:
            return await self.answer(request, body, **ids)

        kind, empty = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
        parameters = [inspect.Parameter("request", kind, annotation=Request)]
        names = re.findall(r"\{(\w+)", self.path)
        parameters += [inspect.Parameter(name, kind, annotation=str) for name in names]
        if self.body is not None:
            hint = self.body | None if self.may_be_empty else self.body
            hint = Annotated[hint, Body() if self.verb == "POST" else Query()]
            default = None if self.may_be_empty else empty
            parameters.append(inspect.Parameter("body", kind, annotation=hint, default=default))
        endpoint.__name__ = self.name or self.answer.__name__
        endpoint.__doc__ = self.says or self.answer.__doc__
        vars(endpoint)["__signature__"] = inspect.Signature(parameters)
        return endpoint


class _StrictRequest(Request):
    async def json(self) -> Any:
        try:
            return wire.decode(await self.body())
        except (ValueError, RecursionError) as error:
            raise JSONDecodeError(str(error), "", 0) from None  # what FastAPI answers with 422


class _StrictRoute(APIRoute):
    def get_route_handler(self):
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return strict


def described(routes: Sequence[Route]) -> APIRouter:
    """The routes as FastAPI's."""
    router = APIRouter(route_class=_StrictRoute)
    for route in routes:
        router.add_api_route(
            route.path,
            route.endpoint,
            methods=[route.verb],
            response_model=route.answers,
            status_code=route.status,
        )
    return router


class FastPath:
    """Answers what can be read at once, and passes everything else on.

    Args:
        app: Where the rest goes.
        routes: In the order in which paths are tried.
        refused: Makes the answer of an error.
    """

    def __init__(
        self, app: App, routes: Sequence[Route], refused: Callable[[AglError], Response]
    ) -> None:
        self.app = app
        self.refused = refused
        fast = [route for route in routes if route.is_fast]
        self._whole = {(route.verb, route.path): route for route in fast if "{" not in route.path}
        self._patterns: dict[str, list[tuple[Route, re.Pattern[str]]]] = {"GET": [], "POST": []}
        for route in fast:
            if "{" in route.path:
                self._patterns[route.verb].append((route, compile_path(route.path)[0]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        PATIENCE_SECONDS.set(0.0)  # for its task: who gets a 503 decides how long it waits
        route, ids = self._find(scope) if scope["type"] == "http" else (None, {})
        writer = _writer(header(scope, RECEIVED[WRITER])) if route else None
        # None, too: the task of a pipelined request begins with what the one before it had.
        run_rules.WRITER.set((writer[2].decode(), int(writer[1])) if writer else None)
        if route is None:
            return await self.app(scope, receive, send)
        body = None
        if route.takes_body:
            message = await receive()  # the whole body; see WholeBody
            kind = header(scope, b"content-type").partition(b";")[0].strip()
            is_kind = kind == route.kind or not route.kind
            try:
                if not is_kind:
                    raise ValueError
                body = route.parse(message["body"])
            except ShapelessError as error:
                return await answer(send, 422, str(error), "ValidationError")
            except (ValueError, RecursionError):
                if not is_kind and len(message["body"]) > LARGE_BODY:
                    why = f"Content-Type {kind.decode('latin-1')!r}: send {route.kind.decode()}"
                    return await answer(send, 415, why, "UnsupportedMediaType")
                return await self.app(scope, first(message, receive), send)
        scope[ROUTE] = route.path
        try:
            response = await route.answer(Request(scope, receive), body, **ids)
        except AglError as error:
            response = self.refused(error)
        return await response(scope, receive, send)

    def _find(self, scope: Scope) -> tuple[Route | None, dict[str, str]]:
        """The route that can answer, and the parameters in the path."""
        verb, path = scope["method"], scope["path"]
        found, ids = self._whole.get((verb, path)), {}
        if found is None:
            for route, pattern in self._patterns.get(verb, ()):
                if match := pattern.match(path):
                    found, ids = route, match.groupdict()
                    break
        return found, ids
