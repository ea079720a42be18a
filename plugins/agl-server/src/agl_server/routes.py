"""The routes of a store server: those of the operations, OTLP, and long polls."""

import asyncio
import gzip
import logging
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

import agl
from agl import errors
from agl.semconv import CLIENT_GONE
from agl.store.base import LightningStore
from agl.store.engine.reading import ReadingStore
from agl.store.packed_span import PackedSpan
from agl.store.release import release_claim
from agl.types import Attempt, AttemptedRollout, Span
from agl_http import metrics, wire
from agl_http.layers import CLOSING, disconnected
from agl_http.roles import visible
from agl_http.tokens import Grant, Tokens, issue_token, read_token
from agl_server import packed_json
from agl_server.answers import Answer, json_answer, record_json
from agl_server.calls import CALLS, AnyRollout, Call
from agl_server.dispatch import Grants, Route

logger = logging.getLogger("agl.server")
T = TypeVar("T")

PROTOBUF = "application/x-protobuf"
_OF_ITS_ATTEMPT = (
    errors.DamagedRecordError,
    errors.UnknownRecordError,
    errors.InvalidRecordError,
    errors.NotAllowedError,
)
"""Refusals of spans that would be refused again, whereas those of other attempts may be taken."""

_Claims = list[wire.Claimed]
_Receipts = list[wire.SpanReceipt]
_attempt = TypeAdapter(Attempt)
_many_rollouts = TypeAdapter(list[AnyRollout])
_span = TypeAdapter(Span)
_object = TypeAdapter(dict[str, Any])
_text, _grant = TypeAdapter(str), TypeAdapter(Grant)


class StoreRoutes:
    """Answers requests out of one store, which is called from the server's event loop."""

    def __init__(self, store: LightningStore, tokens: Tokens | None = None) -> None:
        self.store, self._grants = store, Grants(store, tokens)
        self.requests = metrics.RequestMetrics()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = asyncio.Event()

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncGenerator[dict[str, asyncio.Event]]:
        """Make the closing signal in the loop that serves; requests have it in their state."""
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        yield {CLOSING: self._closing}
        self._loop = None

    def end_long_polls(self) -> None:
        """Answer every held request now, from any thread; those to come are not held."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._closing.set)

    def all(self) -> list[Route]:
        """Every route, in the order in which paths are tried."""
        routes = [
            Route("GET", "/health", self.health, dict[str, Any]),
            Route("GET", wire.HEALTH, self.health, dict[str, Any]),
            Route("POST", wire.TRACES, self.traces, read=bytes),
        ]
        for call in CALLS.values():
            own = Route(
                call.verb,
                wire.PREFIX + call.path,
                partial(self._carry_out, call),
                call.answer_type,
                call.status,
                call.body,
                call.may_be_empty,
                name=call.name,
                says=call.summary,
            )
            routes.append(own)
            if call.also_get is not None:
                routes.append(replace(own, verb="GET", path=wire.PREFIX + call.also_get))
        # By hand: those that wait, and so are held; and spans, which stay the bytes they came as.
        for path, answer, answers, status, body, read in (
            ("queues/rollouts/dequeue", self.dequeue, _Claims, 200, wire.DequeueBody, None),
            ("turn", self.turn, wire.TurnAnswer, 200, wire.TurnBody, packed_json.read_turn),
            ("waits/rollouts", self.wait, list[AnyRollout], 200, wire.WaitBody, None),
            ("spans", self.add_span, Span | None, 201, Span, packed_json.pack),
            ("spans/batch", self.add_spans, _Receipts, 201, list[Span], packed_json.pack_all),
            ("spans/next", self.next_number, dict[str, int], 200, wire.SequenceBody, None),
            ("tokens", self.issue_token, str, 201, wire.TokenBody, None),
            ("tokens/read", self.read_token, Grant | None, 200, wire.GivenToken, None),
        ):
            path = f"{wire.PREFIX}/{path}"
            may_be_empty = body is wire.DequeueBody
            routes.append(Route("POST", path, answer, answers, status, body, may_be_empty, read))
        return routes

    async def _carry_out(self, call: Call, request: Request, body: Any, **ids: str) -> Response:
        """Answer an operation as the table says."""
        arguments, name = ids | call.arguments(body), call.name
        await self._grants.check(request, name, arguments)
        show = visible if self._grants.is_reader(request) and name != "query_spans" else None
        if getattr(type(self.store), name) is ReadingStore.query_spans:  # no subclass's own
            arguments["read"] = packed_json.span_json
        record = await getattr(self.store, name)(**arguments)
        if record is None and call.absent_is_404:
            ((name, value),) = ids.items()
            raise errors.UnknownRecordError(f"no {name.removesuffix('_id')} {value!r}")
        return Answer(await record_json(call.answer, record, show), call.status)

    async def issue_token(self, request: Request, body: wire.TokenBody) -> Response:
        """Make a token of fewer rights, or of as many."""
        await self._grants.check(request, "issue_token", {})
        token = await issue_token(self.store, **dict(body))
        return json_answer(_text, token, 201)

    async def read_token(self, request: Request, body: wire.GivenToken) -> Response:
        """What a token allows; null for one that is not this store's, or no longer good."""
        await self._grants.check(request, "read_token", {})
        return json_answer(_grant, await read_token(self.store, body.token))

    async def health(self, request: Request | None = None, body: None = None) -> Response:
        """Whether the store keeps what it is given, and what the server can do beyond 0.3."""
        answer: dict[str, Any] = {
            "status": "ok",
            "version": agl.__version__,
            "features": wire.FEATURES,
        }
        try:
            await self.store.check_health()
        except errors.StoreUnavailableError as error:
            reason = {"detail": str(error), "error_type": type(error).__name__}
            answer |= {"status": "failing", **reason}
            return json_answer(_object, answer, 503, wire.RETRY_AFTER)
        return json_answer(_object, answer)

    async def metrics(self, request: Request) -> Response:
        """Counters of the store, and counts and durations of requests, for Prometheus."""
        text = self.requests.text(await self.store.statistics())
        return Answer(text.encode(), media_type=metrics.CONTENT_TYPE)

    async def dequeue(self, request: Request, body: wire.DequeueBody | None = None) -> Response:
        """Claim rollouts; with ``wait_seconds`` the request is held until there is one.

        A client that hangs up while it waits gets none. One that lost the answer asks again with
        the same ``key``. One that dies with the answer in its hands has claimed: the attempt ends
        by ``unresponsive_seconds``, or by whoever watches over it.
        """
        body = body or wire.DequeueBody()
        await self._grants.check(request, "dequeue_many_rollouts", {})
        claimed = ()
        if body.wait_seconds <= 0:
            claimed = await self.store.dequeue_many_rollouts(**self._claim_of(request, body))
        answer = await self._claimed(request, body, claimed)
        return Response(status_code=CLIENT_GONE) if answer is None else Answer(*answer)

    def _claim_of(self, request: Request, body: wire.DequeueBody) -> dict[str, Any]:
        key = self._grants.key(request, body.key)
        return {"limit": body.limit, "worker_id": body.worker_id, "key": key}

    async def _claimed(
        self, request: Request, body: wire.DequeueBody, claimed: Sequence[AttemptedRollout]
    ) -> tuple[bytes, int, dict[str, str]] | None:
        """JSON of what was claimed, once there is some, and an answer's status and headers.

        None if the client is gone. Another runner shall then have the work, and a repetition of the
        request shall claim anew, so that answer must not be remembered either.
        """
        headers: dict[str, str] = {}
        if not claimed and body.limit > 0 and body.wait_seconds > 0:
            wait_seconds = min(body.wait_seconds, wire.MAX_WAIT_SECONDS)
            found, end = await self._hold(
                request,
                self.store.dequeue_many_rollouts(
                    wait_seconds=wait_seconds, **self._claim_of(request, body)
                ),
            )
            claimed, headers = found or (), {wire.WAIT_ENDED: end}
            if end == "gone":
                for rollout in claimed:
                    await release_claim(self.store, rollout)
                return None
        return self._grants.claims_json(claimed), 200, headers

    async def turn(
        self, request: Request, body: wire.TurnBody | packed_json.PackedTurn
    ) -> Response:
        """Store spans, end their attempt, and claim what comes next, all or nothing.

        When the end is refused, the spans are not stored either, and nothing is claimed. A turn may
        be repeated. With ``wait_seconds`` in the claim the request is held while nothing is queued;
        by then the rest is stored.
        """
        claim = body.claim or wire.DequeueBody(limit=0)
        is_more = body.claim is not None or body.finish is not None
        operation = "turn" if is_more else "add_many_spans"
        spans = self._grants.written(request, body.spans, operation, body.finish)
        done = await self.store.turn(spans, finish=body.finish, **self._claim_of(request, claim))
        answer = await self._claimed(request, claim, done.claimed)
        if answer is None:
            return Response(status_code=CLIENT_GONE)
        attempt = b"null" if done.attempt is None else _attempt.dump_json(done.attempt)
        content = b'{"spans":%s,"attempt":%s,"claimed":%s}' % (
            packed_json.receipts(done.spans),
            attempt,
            answer[0],
        )
        return Answer(content, *answer[1:])

    async def wait(self, request: Request, body: wire.WaitBody) -> Response:
        """Hold the request until these rollouts have ended, or the time is up."""
        await self._grants.check(request, "wait_for_rollouts", {})
        ended, end = await self._hold(
            request,
            self.store.wait_for_rollouts(rollout_ids=body.rollout_ids, timeout=body.timeout),
        )
        if end == "gone":
            return Response(status_code=CLIENT_GONE)
        if ended is None:
            ended = await self.store.wait_for_rollouts(rollout_ids=body.rollout_ids, timeout=0)
        ended = visible(ended) if self._grants.is_reader(request) else ended
        return json_answer(_many_rollouts, ended, headers={wire.WAIT_ENDED: end})

    async def _hold(
        self, request: Request, operation: Coroutine[Any, Any, T]
    ) -> tuple[T | None, str]:
        """The result of what may wait for long, if there is one, and how it ended.

        ``done``, ``early`` when the server closes, or ``gone`` with the client.
        """
        task = asyncio.ensure_future(operation)
        gone = asyncio.ensure_future(disconnected(request.receive))
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

    async def add_span(self, request: Request, span: Span | PackedSpan) -> Response:
        """Store a span; null when it is stored already."""
        [span] = self._grants.written(request, [span])
        added = [*(await self.store.turn([span], limit=0)).spans, None][0]
        if isinstance(added, PackedSpan):
            return Answer(packed_json.span_json(added.body, added.sequence_id), 201)
        return json_answer(_span, added, 201)

    async def add_spans(self, request: Request, spans: Sequence[Span | PackedSpan]) -> Response:
        """Store spans, all or none; the answer names those that are new, with their numbers."""
        spans = self._grants.written(request, spans)
        return Answer(packed_json.receipts((await self.store.turn(spans, limit=0)).spans), 201)

    async def next_number(self, request: Request, body: wire.SequenceBody) -> Response:
        """Reserve a span number."""
        await self._grants.check(request, "get_many_span_sequence_ids", dict(body))
        number = await self.store.get_next_span_sequence_id(body.rollout_id, body.attempt_id)
        return Answer(b'{"sequence_id":%d}' % number)

    async def traces(self, request: Request, body: bytes) -> Response:
        """OTLP/HTTP: store what can be stored, and say what could not and why."""
        from agl_http import otlp

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
                await self.store.turn(self._grants.written(request, batch), limit=0)
            except _OF_ITS_ATTEMPT as error:
                rejected += [f"span {span.name!r}: {error}" for span in batch]
            except errors.StoreError as error:
                # The exporter sends the batch again; spans that are stored are then skipped.
                logger.warning("spans could not be stored: %s", error)
                return reply(otlp.status_message(str(error)), 503)
        if rejected:
            logger.warning("%d spans rejected; the first: %s", len(rejected), rejected[0])
        return reply(otlp.response_of(rejected))


def _attempt_of(span: Span | PackedSpan) -> tuple[str, str]:
    return span.rollout_id, span.attempt_id
