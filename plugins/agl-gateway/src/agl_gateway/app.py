"""The ASGI application: which address does what, whose call it is, and how it ends."""

import asyncio
import hmac
import logging
import re
from collections.abc import Callable, Mapping

from agl.store.base import LightningStore
from agl_gateway.answers import Additions, dumps
from agl_gateway.backends import Backend, Backends
from agl_gateway.errors import ClientGoneError, RefusedError
from agl_gateway.forward import Forwarder
from agl_gateway.recorder import Recorder
from agl_gateway.records import CallRecord, Origin
from agl_gateway.wire import (
    DisconnectWatch,
    Receive,
    Reply,
    Scope,
    Send,
    parse_request,
    read_body,
)

logger = logging.getLogger("agl.gateway")

ADDRESS = re.compile(
    r"(?:/rollout/(?P<rollout>[^/]+)/attempt/(?P<attempt>[^/]+))?(?:/v1)?"
    r"/(?P<what>chat/completions|models|health)"
)
METHODS = {"chat/completions": "POST", "models": "GET", "health": "GET"}


class GatewayApp:
    """Serves chat completions and the list of models.

    Args:
        backends: Who answers for which model; may be replaced at any time.
        get_store: Where calls are recorded.
        callbacks: What every request asks the backend for.
        num_retries: Further tries when the backend cannot be reached or is overloaded.
        api_key: What clients must send as bearer token; None lets everybody in.
        max_body_bytes: Larger requests are refused.
    """

    def __init__(
        self,
        backends: Backends,
        get_store: Callable[[], LightningStore],
        callbacks: tuple[str, ...],
        num_retries: int,
        api_key: str | None,
        max_body_bytes: int,
    ) -> None:
        self.backends = backends
        self._get_store = get_store
        self._callbacks = callbacks
        self._num_retries = num_retries
        self._api_key = api_key
        self._max_body_bytes = max_body_bytes
        self._forwarder: Forwarder
        self.recorder: Recorder
        """Exists while the application is being served."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self.recorder = Recorder(self._get_store)
        async with Forwarder(self._num_retries) as self._forwarder:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await self.recorder.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = Reply(send)
        try:
            headers = {
                name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
            }
            what, origin = self._locate(scope["method"], scope["path"], headers)
            if what == "chat/completions":
                await self._chat(origin, receive, reply)
            elif what == "models":
                data = [
                    {"id": name, "object": "model", "created": 0, "owned_by": "agl"}
                    for name in self.backends.names
                ]
                await reply.whole(200, dumps({"object": "list", "data": data}))
            else:
                await reply.whole(200, b'{"status":"ok"}')
        except RefusedError as refused:
            await reply.whole(refused.status, refused.body())

    def _locate(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[str, Origin]:
        match = ADDRESS.fullmatch(path)
        if match is None:
            raise RefusedError(
                404,
                f"no such address: {method} {path}; the gateway serves /v1/chat/completions and "
                "/v1/models, also under /rollout/ROLLOUT_ID/attempt/ATTEMPT_ID",
            )
        what = match["what"]
        if method != METHODS[what]:
            raise RefusedError(405, f"{path} takes {METHODS[what]}, not {method}")
        if what != "health":
            self._authorize(headers.get("authorization", ""))
        rollout_id = match["rollout"] or headers.get("x-rollout-id")
        attempt_id = match["attempt"] or headers.get("x-attempt-id")
        if bool(rollout_id) != bool(attempt_id):
            raise RefusedError(
                400,
                "a call needs both x-rollout-id and x-attempt-id, or neither; got "
                f"{rollout_id!r} and {attempt_id!r}",
            )
        return what, Origin(
            rollout_id=rollout_id or None,
            attempt_id=attempt_id or None,
            agent_name=headers.get("x-agl-agent") or None,
            traceparent=headers.get("traceparent"),
        )

    def _authorize(self, authorization: str) -> None:
        expected = f"Bearer {self._api_key}"
        if self._api_key and not hmac.compare_digest(authorization.encode(), expected.encode()):
            raise RefusedError(
                401,
                "wrong or missing API key; use the api_key of the LLM resource",
                "invalid_api_key",
            )

    async def _chat(self, origin: Origin, receive: Receive, reply: Reply) -> None:
        record = CallRecord(origin)
        try:
            body = await read_body(receive, self._max_body_bytes)
            record.request = request = parse_request(body)
            backend = self._choose(request.get("model"), origin)
            callbacks = self._callbacks if backend.takes_extensions else ()
            additions = Additions.of(request, callbacks)
            async with DisconnectWatch(receive):
                await self._forwarder.forward(backend, record, additions, reply, self._end)
        except RefusedError as refused:
            record.status_code = refused.status
            self._end(record, refused.message)
            await reply.whole(refused.status, refused.body())
        except ClientGoneError as gone:
            self._end(record, str(gone))
        except asyncio.CancelledError:
            self._end(record, "the gateway stopped before the answer was complete")
            raise
        except Exception as error:
            logger.exception("a model call failed inside the gateway")
            self._end(record, f"the gateway failed: {error!r}")
            if reply.is_started:
                raise
            refused = RefusedError(500, f"the gateway failed: {error!r}")
            await reply.whole(refused.status, refused.body())

    def _choose(self, model: object, origin: Origin) -> Backend:
        backends = self.backends
        names = ", ".join(backends.names) or "none yet"
        if not isinstance(model, str):
            raise RefusedError(400, f"the request has no 'model'; served models: {names}")
        backend = backends.choose(model, origin.attempt_id)
        if backend is None:
            raise RefusedError(
                404, f"unknown model {model!r}; served models: {names}", "model_not_found"
            )
        return backend

    def _end(self, record: CallRecord, error: str | None) -> None:
        # Called before the last byte goes out: who has an answer and then flushes, finds its span.
        if record.end(error=error) and record.origin.is_attributed:
            self.recorder.add(record)
