"""The routes of a store server: 0.3's, OTLP, and long polls."""

import asyncio
import gzip
import logging
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from json import JSONDecodeError
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Body, FastAPI, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

import agl
from agl import metrics, packing, wire
from agl.asgi import CLIENT_GONE
from agl.errors import (
    InvalidQueryError,
    InvalidRecordError,
    StoreError,
    StoreUnavailableError,
    UnknownRecordError,
)
from agl.store.base import AttemptEnd, LightningStore
from agl.store.give_back import give_back
from agl.store.packed import PackedSpan
from agl.types import (
    Attempt,
    AttemptedRollout,
    LedgerPart,
    NamedResources,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    Span,
    Worker,
)

logger = logging.getLogger(__name__)
T = TypeVar("T")

AnyRollout = AttemptedRollout | Rollout
PROTOBUF = "application/x-protobuf"

_attempt = TypeAdapter(Attempt)
_attempts = TypeAdapter(PaginatedResult[Attempt])
_attempted = TypeAdapter(AttemptedRollout)
_many_attempted = TypeAdapter(list[AttemptedRollout])
_any_rollout = TypeAdapter[AnyRollout](AnyRollout)
_many_rollouts = TypeAdapter(list[AnyRollout])
_rollouts = TypeAdapter(PaginatedResult[AnyRollout])
_span = TypeAdapter(Span)
_spans = TypeAdapter(PaginatedResult[Span])
_number = TypeAdapter(dict[str, int])
_ledger = TypeAdapter(PaginatedResult[LedgerPart])
_resources = TypeAdapter(ResourcesUpdate)
_all_resources = TypeAdapter(PaginatedResult[ResourcesUpdate])
_worker = TypeAdapter(Worker)
_workers = TypeAdapter(PaginatedResult[Worker])
_statistics = _answer = TypeAdapter(dict[str, Any])


class Answer(Response):
    """A finished answer. Starlette's constructor costs more than most of what stands in one."""

    def __init__(
        self,
        content: bytes,
        status: int = 200,
        headers: dict[str, str] | None = None,
        media_type: str = "application/json",
    ) -> None:
        self.status_code = status
        self.body = content
        self.background = None
        self.raw_headers = [
            (b"content-type", media_type.encode()),
            (b"content-length", b"%d" % len(content)),
        ]
        for name, value in (headers or {}).items():
            self.raw_headers.append((name.lower().encode(), value.encode()))


class _StrictRequest(Request):
    async def json(self) -> Any:
        try:
            return wire.decode(await self.body())
        except ValueError as error:
            raise JSONDecodeError(str(error), "", 0) from None  # what FastAPI answers with 422


class _StrictRoute(APIRoute):
    def get_route_handler(self):
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return strict


class StoreRoutes:
    """Answers requests out of one store.

    Args:
        store: Any store; it is called from the server's event loop.
    """

    def __init__(self, store: LightningStore) -> None:
        self.store = store
        self.requests = metrics.RequestMetrics()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = asyncio.Event()

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncGenerator[None]:
        """Make the closing signal in the loop that serves."""
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        yield
        self._loop = None

    def end_long_polls(self) -> None:
        """Answer every held request now, from any thread; those to come are not held."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._closing.set)

    def router(self) -> APIRouter:
        """All routes under ``/v1/agl``."""
        router = APIRouter(prefix=wire.PREFIX, route_class=_StrictRoute)

        def get(path: str, endpoint: Any, model: Any) -> None:
            router.add_api_route(path, endpoint, methods=["GET"], response_model=model)

        def post(path: str, endpoint: Any, model: Any, status: int = 200) -> None:
            router.add_api_route(
                path, endpoint, methods=["POST"], response_model=model, status_code=status
            )

        get("/health", self.health, dict[str, Any])
        get("/statistics", self.statistics, dict[str, Any])
        post("/queues/rollouts/enqueue", self.enqueue, list[Rollout], 201)
        post("/queues/rollouts/dequeue", self.dequeue, list[AttemptedRollout])
        post("/turn", self.turn, wire.TurnAnswer)
        post("/waits/rollouts", self.wait, list[AnyRollout])
        get("/rollouts", self.get_rollouts, PaginatedResult[AnyRollout])
        post("/rollouts", self.start_rollout, AttemptedRollout, 201)
        post("/rollouts/search", self.search_rollouts, PaginatedResult[AnyRollout])
        get("/rollouts/{rollout_id}", self.get_rollout, AnyRollout)
        post("/rollouts/{rollout_id}", self.update_rollout, AnyRollout)
        attempts = "/rollouts/{rollout_id}/attempts"
        get(attempts, self.get_attempts, PaginatedResult[Attempt])
        post(attempts, self.start_attempt, AttemptedRollout, 201)
        post(f"{attempts}/search", self.search_attempts, PaginatedResult[Attempt])
        get(f"{attempts}/latest", self.get_latest_attempt, Attempt | None)
        post(f"{attempts}/{{attempt_id}}", self.update_attempt, Attempt)
        get("/spans", self.get_spans, PaginatedResult[Span])
        post("/spans", self.add_span, Span | None, 201)
        post("/spans/batch", self.add_spans, list[wire.SpanReceipt], 201)
        post("/spans/search", self.search_spans, PaginatedResult[Span])
        post("/spans/next", self.next_sequence_id, dict[str, int])
        post("/ledger", self.add_ledger_parts, None, 201)
        post("/ledger/search", self.search_ledger_parts, PaginatedResult[LedgerPart])
        get("/resources", self.get_all_resources, PaginatedResult[ResourcesUpdate])
        post("/resources", self.add_resources, ResourcesUpdate, 201)
        get("/resources/latest", self.get_latest_resources, ResourcesUpdate | None)
        get("/resources/{resources_id:path}", self.get_resources, ResourcesUpdate | None)
        post("/resources/{resources_id:path}", self.update_resources, ResourcesUpdate)
        get("/workers", self.get_workers, PaginatedResult[Worker])
        post("/workers/search", self.search_workers, PaginatedResult[Worker])
        get("/workers/{worker_id:path}", self.get_worker, Worker | None)
        post("/workers/{worker_id:path}", self.update_worker, Worker)
        return router

    # --- queue

    async def health(self) -> Response:
        """Whether the store keeps what it is given, and what the server can do beyond 0.3."""
        answer: dict[str, Any] = {
            "status": "ok",
            "version": agl.__version__,
            "features": wire.FEATURES,
        }
        try:
            await self.store.check_health()
        except StoreUnavailableError as error:
            reason = {"detail": str(error), "error_type": type(error).__name__}
            answer |= {"status": "failing", **reason}
            return _json(_answer, answer, 503, wire.RETRY_AFTER)
        return _json(_answer, answer)

    async def statistics(self) -> Response:
        """Counters of the store."""
        return _json(_statistics, await self.store.statistics())

    async def metrics(self) -> Response:
        """The same, and counts and durations of requests, for Prometheus."""
        text = self.requests.text(await self.store.statistics())
        return Answer(text.encode(), media_type=metrics.CONTENT_TYPE)

    async def enqueue(self, body: wire.EnqueueBody) -> Response:
        """Queue tasks."""
        return _json(_many_rollouts, await self.store.enqueue_many_rollouts(body.rollouts), 201)

    async def dequeue(self, request: Request, body: wire.DequeueBody | None = None) -> Response:
        """Claim rollouts; with ``wait_seconds`` the request is held until there is one.

        A client that hangs up while it waits gets none. One that lost the answer asks again with
        the same ``key``. One that dies with the answer in its hands has claimed: the attempt ends
        by ``unresponsive_seconds``, or by whoever watches over it.
        """
        body = body or wire.DequeueBody()
        if body.wait_seconds <= 0:
            claimed = await self.store.dequeue_many_rollouts(
                limit=body.limit, worker_id=body.worker_id, key=body.key
            )
            return _json(_many_attempted, claimed)
        claimed, end = await self._hold_claim(request, body)
        if claimed is None:
            return Response(status_code=CLIENT_GONE)
        return _json(_many_attempted, claimed, headers={wire.WAIT_ENDED: end})

    async def _hold_claim(
        self, request: Request, body: wire.DequeueBody
    ) -> tuple[Sequence[AttemptedRollout] | None, str]:
        """Claim, waiting for work; None when the client is gone, else see ``_hold``."""
        claimed, end = await self._hold(
            request,
            self.store.dequeue_many_rollouts(
                limit=body.limit,
                worker_id=body.worker_id,
                wait_seconds=min(body.wait_seconds, wire.MAX_WAIT_SECONDS),
                key=body.key,
            ),
        )
        if end == "gone":
            # Nobody gets this answer. Another runner shall have the work, and a repetition of the
            # request shall claim anew, so the answer must not be remembered either.
            await give_back(self.store, claimed or ())
            return None, end
        return claimed or [], end

    async def turn(self, request: Request, body: wire.TurnBody) -> Response:
        """Store spans, end their attempt, and claim what comes next, all or nothing.

        When the end is refused, the spans are not stored either, and nothing is claimed. A turn may
        be repeated. With ``wait_seconds`` in the claim the request is held while nothing is queued;
        by then the rest is stored.
        """
        return await self.take_turn(request, (body.spans, body.finish, body.claim))

    async def take_turn(
        self,
        request: Request,
        parts: tuple[Sequence[Span | PackedSpan], AttemptEnd | None, wire.DequeueBody | None],
    ) -> Response:
        """``turn`` with its spans packed or not."""
        spans, finish, claim = parts
        claim = claim or wire.DequeueBody(limit=0)
        limit = claim.limit
        done = await self.store.turn(
            spans, finish=finish, limit=limit, worker_id=claim.worker_id, key=claim.key
        )
        claimed = done.claimed
        headers: dict[str, str] = {}
        if limit > 0 and not claimed and claim.wait_seconds > 0:
            claimed, end = await self._hold_claim(request, claim)
            if claimed is None:
                return Response(status_code=CLIENT_GONE)
            headers = {wire.WAIT_ENDED: end}
        attempt = b"null" if done.attempt is None else _attempt.dump_json(done.attempt)
        content = b'{"spans":%s,"attempt":%s,"claimed":%s}' % (
            packing.receipts(done.spans),
            attempt,
            _many_attempted.dump_json(list(claimed)),
        )
        return Answer(content, headers=headers)

    async def wait(self, request: Request, body: wire.WaitBody) -> Response:
        """Hold the request until these rollouts have ended, or the time is up."""
        ended, end = await self._hold(
            request,
            self.store.wait_for_rollouts(rollout_ids=body.rollout_ids, timeout=body.timeout),
        )
        if end == "gone":
            return Response(status_code=CLIENT_GONE)
        if ended is None:
            ended = await self.store.wait_for_rollouts(rollout_ids=body.rollout_ids, timeout=0)
        return _json(_many_rollouts, ended, headers={wire.WAIT_ENDED: end})

    async def _hold(
        self, request: Request, operation: Coroutine[Any, Any, T]
    ) -> tuple[T | None, str]:
        """Run what may wait for long, until the server closes or the client is gone.

        Returns:
            The result, or None where there is none yet; and ``done``, ``early`` or ``gone``.
        """
        task = asyncio.ensure_future(operation)
        gone = asyncio.ensure_future(_disconnected(request))
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait({task, gone, closing}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            result = None if task.cancelled() else task.result()
            if gone.done():
                return result, "gone"
            return result, "early" if task.cancelled() else "done"
        finally:
            for other in (task, gone, closing):
                other.cancel()

    # --- rollouts and attempts

    async def get_rollouts(self, query: Annotated[wire.RolloutQuery, Query()]) -> Response:
        """Rollouts that match."""
        return await self.search_rollouts(query)

    async def search_rollouts(self, body: wire.RolloutQuery) -> Response:
        """Rollouts that match; unlike a query string, a body can say "none of them"."""
        return _json(_rollouts, await self.store.query_rollouts(**body.all()))

    async def start_rollout(self, body: wire.StartRolloutBody) -> Response:
        """Start a rollout past the queue."""
        return _json(_attempted, await self.store.start_rollout(**body.all()), 201)

    async def get_rollout(self, rollout_id: str) -> Response:
        """One rollout."""
        rollout = await self.store.get_rollout_by_id(rollout_id)
        if rollout is None:
            raise UnknownRecordError(f"no rollout {rollout_id!r}")
        return _json(_any_rollout, rollout)

    async def update_rollout(self, rollout_id: str, body: wire.RolloutChange) -> Response:
        """Change the fields that were sent."""
        given = _no_null(body, "status", "config")
        return _json(_any_rollout, await self.store.update_rollout(rollout_id, **given))

    async def start_attempt(
        self, rollout_id: str, body: wire.StartAttemptBody | None = None
    ) -> Response:
        """Start another attempt."""
        given = body.all() if body else {}
        return _json(_attempted, await self.store.start_attempt(rollout_id, **given), 201)

    async def get_attempts(
        self, rollout_id: str, query: Annotated[wire.AttemptQuery, Query()]
    ) -> Response:
        """Attempts of a rollout."""
        return await self.search_attempts(rollout_id, query)

    async def search_attempts(self, rollout_id: str, body: wire.AttemptQuery) -> Response:
        """Attempts of a rollout."""
        return _json(_attempts, await self.store.query_attempts(rollout_id, **body.all()))

    async def get_latest_attempt(self, rollout_id: str) -> Response:
        """The newest attempt, or null."""
        return _json(_attempt, await self.store.get_latest_attempt(rollout_id))

    async def update_attempt(
        self, rollout_id: str, attempt_id: str, body: wire.AttemptChange
    ) -> Response:
        """Change the fields that were sent."""
        given = _no_null(body, "status", "worker_id", "last_heartbeat_time", "error")
        return _json(_attempt, await self.store.update_attempt(rollout_id, attempt_id, **given))

    # --- spans

    async def add_span(self, span: Span) -> Response:
        """Store a span; null when it is stored already."""
        return _json(_span, await self.store.add_span(span), 201)

    async def add_spans(self, spans: Annotated[list[Span], Body()]) -> Response:
        """Store spans, all or none; the answer names those that are new, with their numbers."""
        return Answer(packing.receipts(await self.store.add_many_spans(spans)), 201)

    async def add_packed_span(self, request: Request, span: PackedSpan) -> Response:
        """``add_span`` of one that is packed."""
        done = await self.store.turn([span], limit=0)
        if not done.spans:
            return Answer(b"null", 201)
        number = done.spans[0].sequence_id
        body = span.body.encode() if number == span.sequence_id else packing.numbered(span, number)
        return Answer(body, 201)

    async def add_packed_spans(self, request: Request, spans: list[PackedSpan]) -> Response:
        """``add_spans`` of packed ones."""
        return Answer(packing.receipts((await self.store.turn(spans, limit=0)).spans), 201)

    async def get_spans(self, query: Annotated[wire.SpanQuery, Query()]) -> Response:
        """Spans that match."""
        return await self.search_spans(query)

    async def search_spans(self, body: wire.SpanQuery) -> Response:
        """Spans that match."""
        return _json(_spans, await self.store.query_spans(**body.all()))

    async def next_sequence_id(self, body: wire.SequenceBody) -> Response:
        """Reserve a span number."""
        number = await self.store.get_next_span_sequence_id(body.rollout_id, body.attempt_id)
        return _json(_number, {"sequence_id": number})

    async def traces(self, request: Request) -> Response:
        """OTLP/HTTP: store what can be stored, and say what could not and why."""
        return await self.store_traces(request, await request.body())

    async def store_traces(self, request: Request, body: bytes) -> Response:
        """``traces`` with its body read."""
        from agl import otlp

        def reply(content: bytes, status: int = 200) -> Response:
            headers = dict(wire.RETRY_AFTER) if status == 503 else {}
            if "gzip" in request.headers.get("accept-encoding", ""):
                content = gzip.compress(content, 1)
                headers["content-encoding"] = "gzip"
            return Answer(content, status, headers, PROTOBUF)

        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind != PROTOBUF:
            problem = f"Content-Type {kind!r} is not taken here; export with protocol http/protobuf"
            return reply(otlp.status_message(problem), 400)
        try:
            spans, rejected = otlp.packed_of(body)
        except ValueError as error:
            return reply(otlp.status_message(str(error)), 400)
        # One attempt that the store does not know must not cost the others their spans.
        by_attempt = groupby(
            sorted(spans, key=_attempt_of),  # sorting is stable: the order in an attempt stays
            key=_attempt_of,
        )
        for _, group in by_attempt:
            batch = list(group)
            try:
                await self.store.turn(batch, limit=0)
            except (UnknownRecordError, InvalidRecordError) as error:
                rejected += [f"span {span.name!r}: {error}" for span in batch]
            except StoreError as error:
                # The exporter sends the batch again; spans that are stored are then skipped.
                logger.warning("spans could not be stored: %s", error)
                return reply(otlp.status_message(str(error)), 503)
        if rejected:
            logger.warning("%d spans rejected; the first: %s", len(rejected), rejected[0])
        return reply(otlp.response_of(rejected))

    # --- the ledger

    async def add_ledger_parts(self, body: wire.LedgerBody) -> Response:
        """Keep accounts of rollouts, all or none; they may be sent again."""
        await self.store.add_ledger_parts(body.parts)
        return Answer(b"null", 201)

    async def search_ledger_parts(self, body: wire.LedgerQuery) -> Response:
        """Accounts that match."""
        return _json(_ledger, await self.store.query_ledger_parts(**body.all()))

    # --- resources

    async def get_all_resources(self, query: Annotated[wire.ResourcesQuery, Query()]) -> Response:
        """Snapshots that match."""
        return _json(_all_resources, await self.store.query_resources(**query.all()))

    async def add_resources(self, resources: Annotated[NamedResources, Body()]) -> Response:
        """Store a snapshot."""
        return _json(_resources, await self.store.add_resources(resources), 201)

    async def get_latest_resources(self) -> Response:
        """The latest snapshot, or null."""
        return _json(_resources, await self.store.get_latest_resources())

    async def get_resources(self, resources_id: str) -> Response:
        """One snapshot, or null."""
        return _json(_resources, await self.store.get_resources_by_id(resources_id))

    async def update_resources(
        self, resources_id: str, resources: Annotated[NamedResources, Body()]
    ) -> Response:
        """Replace a snapshot, or make it under this id."""
        return _json(_resources, await self.store.update_resources(resources_id, resources))

    # --- workers

    async def get_workers(self, query: Annotated[wire.WorkerQuery, Query()]) -> Response:
        """Workers that match."""
        return await self.search_workers(query)

    async def search_workers(self, body: wire.WorkerQuery) -> Response:
        """Workers that match."""
        return _json(_workers, await self.store.query_workers(**body.all()))

    async def get_worker(self, worker_id: str) -> Response:
        """One worker, or null."""
        return _json(_worker, await self.store.get_worker_by_id(worker_id))

    async def update_worker(
        self, worker_id: str, body: wire.WorkerChange | None = None
    ) -> Response:
        """Note a heartbeat."""
        given = _no_null(body, "heartbeat_stats") if body else {}
        return _json(_worker, await self.store.update_worker(worker_id, **given))


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _json(
    adapter: TypeAdapter[Any], value: Any, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Serialize once; FastAPI would validate the answer first."""
    content = b"null" if value is None else adapter.dump_json(value)
    return Answer(content, status, headers)


def _no_null(body: wire.Body, *names: str) -> dict[str, Any]:
    given = body.given()
    for name in names:
        if name in given and given[name] is None:
            raise InvalidQueryError(f"{name!r} is null and cannot be cleared; leave it out")
    return given


def _attempt_of(span: PackedSpan) -> tuple[str, str]:
    return span.rollout_id, span.attempt_id
