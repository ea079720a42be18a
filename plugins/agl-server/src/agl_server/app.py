"""The application of a store server: its routes, how it answers errors, and the layers around."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

import agl
from agl.errors import AglError
from agl_http import wire
from agl_http.layers import App, Authenticated, ErrorGuard, RememberedPosts, Unpacked, WholeBody
from agl_http.tokens import ADMIN, Tokens
from agl_server.answers import error_answer
from agl_server.dispatch import Dispatch
from agl_server.routes import StoreRoutes

logger = logging.getLogger("agl.server")


async def not_implemented(request: Request) -> Response:
    """OTLP signals that a store has no place for."""
    return error_answer(501, "only traces are stored", "NotImplemented")


PAGES = ("/", "/resources", "/rollouts", "/runners", "/settings", "/traces", "/workers")
"""Where 0.3 had its dashboard. A plugin's routes for them come before ``index``."""


async def index(request: Request) -> Response:
    """What a person sees who opens the address in a browser, where no plugin has pages."""
    about = f"A store of agl {agl.__version__}. To see its pages, run: agl ui ADDRESS (agl-ui)\n"
    return PlainTextResponse(about, 200 if request.url.path == "/" else 404)


def store_app(
    routes: StoreRoutes,
    tokens: Tokens | None = None,
    *,
    cors_allow_origins: Sequence[str] = (),
    max_body_bytes: int = wire.MAX_BODY_BYTES,
    extra_routes: Sequence[BaseRoute] = (),
) -> App:
    """The application that a store server serves.

    Without ``tokens`` everybody may do everything; else requests need one, health checks aside.
    The store's own paths come before ``extra_routes``, which are of plugins.
    """
    listed = routes.all()

    @cache
    def description() -> dict[str, Any]:
        from agl_server.description import openapi_of

        return openapi_of(listed, beside)

    describing = asyncio.Lock()  # FastAPI fails where two threads describe one set of types

    async def openapi(request: Request) -> Response:
        async with describing:
            return JSONResponse(await asyncio.to_thread(description))

    signals = ("metrics", "logs", "development/profiles")
    beside = [
        Route("/metrics", routes.metrics, methods=["GET"]),
        *(Route(f"/v1/{signal}", not_implemented, methods=["POST"]) for signal in signals),
    ]
    others = Starlette(
        routes=[
            Route("/openapi.json", openapi),
            *beside,
            *extra_routes,
            *(Route(path, index) for path in PAGES),
        ],
        lifespan=routes.lifespan,
        exception_handlers={
            AglError: _agl_error,
            HTTPException: _http_error,
            Exception: _unforeseen,
        },
    )
    others.router.redirect_slashes = False

    grant_of: Callable[[bytes], Any] = (lambda _: ADMIN) if tokens is None else tokens.read_header
    open_paths = frozenset({wire.HEALTH, "/health"})
    inner = RememberedPosts(Unpacked(Dispatch(others, listed), max_body_bytes))
    app: App = Authenticated(WholeBody(inner, max_body_bytes), grant_of, open_paths)
    if cors_allow_origins:
        app = CORSMiddleware(
            app, allow_origins=cors_allow_origins, allow_methods=["*"], allow_headers=["*"]
        )
    observe = routes.requests.observe
    return ErrorGuard(app, observe, ErrorGuard(inner, observe), grant_of, max_body_bytes)


async def _agl_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AglError)
    return error_answer(wire.status_of(error), str(error), type(error).__name__)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    return error_answer(error.status_code, error.detail, "HTTPException", headers)


async def _unforeseen(request: Request, error: Exception) -> Response:
    logger.error("%s %r failed", request.method, request.url.path, exc_info=error)
    return error_answer(500, "internal error; see the server's log", "InternalServerError")
