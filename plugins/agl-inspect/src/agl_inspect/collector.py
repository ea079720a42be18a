"""A stand-in for the server of AgentOps: what its SDK sends goes into a store.

A program that calls ``agentops.init`` asks for a token with its API key, and sends its spans by
OTLP. Each of its traces becomes a rollout, as ``agl import`` makes one of a recorded trace: its
task is the last message of a user in its first model call, and it ends with its root span. Spans
are in the store before the program has its answer.
"""

import asyncio
import hmac
import json
import logging
import secrets
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agl.errors import StoreError, StoreUnavailableError
from agl.store.base import LightningStore
from agl.types import Span
from agl_http.otlp import response_of, spans_of, status_message
from agl_http.tokens import token_in
from agl_inspect.exchange.importer import Importer
from agl_inspect.exchange.otlp import name_spans
from agl_inspect.exchange.traces import end_trace, error_of
from agl_records.calls.reader import unread_spans
from agl_records.calls.sources.unread import by_scope

logger = logging.getLogger("agl.agentops")

PROTOBUF = "application/x-protobuf"
STOPPED = "the collector stopped before the trace ended"


class Collector:
    """Puts the spans of requests into a store, which is closed with the application.

    Programs give ``key`` as their API key.
    """

    def __init__(self, store: LightningStore, key: str) -> None:
        self._key, self._token = key, secrets.token_urlsafe(24)
        self._importer = Importer(store)
        self._open: dict[str, tuple[str, str]] = {}
        """Trace -> ids of its rollout and attempt."""
        self._lock = asyncio.Lock()
        self._has_said = False

    def app(self) -> Starlette:
        """The application, for one server."""
        routes = [
            Route("/health", self._health),
            Route("/v3/auth/token", self._authenticate, methods=["POST"]),
            Route("/v1/traces", self._traces, methods=["POST"]),
            Route("/v4/logs/upload/", self._logs, methods=["POST"]),
            Route("/v4/logs/upload", self._logs, methods=["POST"]),
        ]
        return Starlette(routes=routes, lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncGenerator[None]:
        await self._importer.look()
        try:
            yield
            async with self._lock:
                for name, ids in self._open.items():
                    await self._importer.end(name, *ids, STOPPED)
        finally:
            await self._importer.store.close()

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _authenticate(self, request: Request) -> Response:
        try:
            body: Any = await request.json()
        except ValueError:
            body = None
        given = body.get("api_key") if isinstance(body, dict) else None
        if not hmac.compare_digest(str(given).encode(), self._key.encode()):
            return JSONResponse({"error": "wrong API key: see what agl agentops printed"}, 401)
        return JSONResponse(
            {"token": self._token, "project_id": "agl", "project_prem_status": "agl"}
        )

    def _may(self, request: Request) -> bool:
        given = token_in(request.headers.get("authorization", "").encode())
        return hmac.compare_digest(given.encode(), self._token.encode())

    async def _logs(self, request: Request) -> Response:
        """What the program printed, which AgentOps takes as well; a store has no place for it."""
        if not self._may(request):
            return JSONResponse({"error": "wrong token"}, 401)
        if not self._has_said:
            self._has_said = True
            logger.warning("what programs print is sent here as well, and is not kept")
        return JSONResponse({"url": "", "id": 0})

    async def _traces(self, request: Request) -> Response:
        if not self._may(request):
            return Response(status_message("wrong token"), 401, media_type=PROTOBUF)
        try:
            spans, refused = spans_of(_named(await request.body()))
        except ValueError as error:
            return Response(status_message(str(error)), 400, media_type=PROTOBUF)
        by_trace: defaultdict[str, list[Span]] = defaultdict(list)
        for span in spans:
            by_trace[span.rollout_id].append(span)
        try:
            async with self._lock:
                for name, of_trace in by_trace.items():
                    await self._add(name, of_trace)
        except StoreUnavailableError as error:
            # The program sends it again; spans that are stored are then skipped.
            logger.warning("spans could not be stored: %s", error)
            return Response(status_message(str(error)), 503, media_type=PROTOBUF)
        except StoreError as error:
            refused += [f"span {span.name!r}: {error}" for span in spans]
        if refused:
            logger.warning("%d spans refused; the first: %s", len(refused), refused[0])
        return Response(response_of(refused), media_type=PROTOBUF)

    async def _add(self, name: str, spans: list[Span]) -> None:
        """Store what came of a trace, and end its rollout with its root span."""
        importer = self._importer
        if name not in self._open and importer.has(name):
            logger.warning("trace %s has ended; %d late spans are not kept", name, len(spans))
            return
        if name not in self._open:
            self._open[name] = await importer.begin(name, {"from": "agentops"})
        rollout_id, attempt_id = self._open[name]
        ids = {"rollout_id": rollout_id, "attempt_id": attempt_id}
        # They come in the order in which they ended; a store numbers them as it gets them.
        ordered = sorted(spans, key=lambda span: span.start_time or 0.0)
        await importer.store.add_many_spans([span.model_copy(update=ids) for span in ordered])
        root = next((span for span in spans if span.parent_id is None), None)
        if root is None:
            return
        own, task = await end_trace(importer, name, rollout_id, attempt_id, error_of(root))
        for unread in by_scope(unread_spans(own)):
            logger.warning("trace %s: %s", name, unread)
        del self._open[name]
        logger.info("trace %s is rollout %s: %s", name, rollout_id, json.dumps(task)[:200])


def _named(body: bytes) -> bytes:
    """The request, in which every span says whose it is; a ``ValueError`` for what is none."""
    request = ExportTraceServiceRequest()
    try:
        request.ParseFromString(body)
    except Exception as error:  # protobuf's DecodeError, whose module differs between versions
        raise ValueError(f"not an ExportTraceServiceRequest: {error}") from None
    name_spans(request)
    return request.SerializeToString()
