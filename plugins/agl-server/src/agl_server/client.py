"""A store that another process serves over HTTP."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from agl.env import LightningEnvVar, resolve_str_env_var
from agl.errors import AglError, ConfigError, InvalidRecordError, StoreError, UnknownRecordError
from agl.store.base import AttemptEnd, LightningStore, LightningStoreCapabilities, Turn
from agl.store.operation import operation
from agl.store.packed_span import AnySpan
from agl.store.queries import check_seconds, check_statuses
from agl.store.release import release_claim
from agl.store.span_checks import check_span
from agl.types import Attempt, EnqueueRolloutRequest, Rollout, Span
from agl.utils.json_values import copy_of_changes
from agl.utils.secrets import learn
from agl_http import wire
from agl_http.tokens import Grant, Role, with_token, without_token
from agl_server.calls import CALLS, AnyRollout
from agl_server.runner_tokens import ClaimTokens, TokenSlot
from agl_server.transport import RETRY_DELAYS, Transport, encode

T = TypeVar("T")

LONG_POLL_SECONDS = 30.0
"""How long one request of a longer wait is held; a lost connection is noticed after that."""

_object = TypeAdapter(dict[str, Any])
_text, _maybe_grant = TypeAdapter(str), TypeAdapter[Grant | None](Grant | None)
_many_rollouts = TypeAdapter(list[AnyRollout])
_turn = TypeAdapter(wire.TurnAnswer)
_number = TypeAdapter(dict[str, int])


class LightningStoreClient(LightningStore):
    """A store that is served elsewhere, by ``LightningStoreServer`` or ``agl store``.

    May be used from any thread and event loop, survives fork, and can be pickled. Requests that get
    no answer are repeated, and the server carries each out once. After the server itself was
    restarted, which ends its memory of requests, that still holds for all but one: span numbers may
    be skipped.

    Args:
        server_address: For example ``http://agl:TOKEN@127.0.0.1:4747``, as the server prints it,
            or without a token; for a Unix socket ``http+unix://%2Ftmp%2Fagl.sock``. Of several
            servers before one database, a list, or a text with commas: when one gives no answer,
            the next is asked. They have the same ``AGL_SERVER_TOKEN``.
        retry_delays: Seconds before each repetition of a request that got no answer; together they
            are how long an outage may last. In one that lasts longer, later requests take three.
        request_timeout: Seconds that one request may take, beyond what it was asked to wait.
        connection_timeout: Seconds that connecting may take.
        token: A token of the server, or where one will be read from. None takes the one in the
            address, or reads ``AGL_SERVER_TOKEN``.

    Raises:
        ConfigError: ``server_address`` is no address of this form.
    """

    def __init__(
        self,
        server_address: str | Sequence[str],
        *,
        retry_delays: Sequence[float] = RETRY_DELAYS,
        request_timeout: float = 30.0,
        connection_timeout: float = 5.0,
        token: str | TokenSlot | None = None,
    ) -> None:
        each = server_address.split(",") if isinstance(server_address, str) else server_address
        found = [without_token(one.strip()) for one in each]
        addresses = [address for address, _ in found]
        given, *others = {given for _, given in found if given} or {None}
        if others:
            raise ConfigError("servers of one store have one token: start all with the same one")
        if not isinstance(token, TokenSlot):
            token = resolve_str_env_var(LightningEnvVar.AGL_SERVER_TOKEN, token or given) or None
            learn(token)
        self._token = token
        self._claims = ClaimTokens(token)
        self._transport = Transport(
            addresses, token, retry_delays, request_timeout, connection_timeout
        )

    @property
    def server_address(self) -> str:
        return self._transport.address

    @property
    def headers(self) -> dict[str, str]:
        """What a request of any other client must carry: the token, if there is one."""
        return {"Authorization": f"Bearer {token}"} if (token := self._own_token()) else {}

    def _own_token(self) -> str | None:
        return self._token.look() if isinstance(self._token, TokenSlot) else self._token

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        said = LightningStoreCapabilities(zero_copy=True, otlp_traces=True, persistent=True)
        return {**super().capabilities, **said}

    def otlp_traces_endpoint(self) -> str:
        """Address for an OTLP/HTTP exporter, with the token in it.

        A runner's is not enough for spans: these need the token that came with their claim.
        """
        return f"{with_token(self.server_address, self._own_token())}{wire.TRACES}"

    async def check_health(self) -> None:
        _read(await self._transport.get("/health"), _object)

    async def close(self) -> None:
        """Close the connections of this process; who waits for an answer is refused."""
        await self._transport.close()

    statistics = operation(LightningStore.statistics)
    get_rollout_by_id = operation(LightningStore.get_rollout_by_id)
    get_latest_attempt = operation(LightningStore.get_latest_attempt)
    get_latest_resources = operation(LightningStore.get_latest_resources)
    get_worker_by_id = operation(LightningStore.get_worker_by_id)

    async def issue_token(
        self, role: Role, rollout_id: str = "", attempt_id: str = "", seconds: float | None = None
    ) -> str:
        """Make a token; one for model calls follows from that of what was claimed here."""
        if role == "model" and (token := self._claims.model_token(rollout_id, attempt_id)):
            return token
        body = {"role": role, "rollout_id": rollout_id, "attempt_id": attempt_id}
        return await self._post("/tokens", body | {"seconds": seconds}, _text)

    async def read_token(self, token: str) -> Grant | None:
        return await self._post("/tokens/read", {"token": token}, _maybe_grant)

    async def call(self, operation: str, arguments: dict[str, Any]) -> Any:
        call = CALLS[operation]
        arguments = call.complete(copy_of_changes(arguments))
        if "key" in arguments:  # what is asked twice is done once
            arguments["key"] = arguments["key"] or secrets.token_urlsafe(12)
        if "status_in" in arguments:
            check_statuses(operation.removeprefix("query_"), arguments["status_in"])
        ids = [arguments["rollout_id"]] if "rollout_id" in arguments else ()
        claims = self._claims.of(ids or arguments.get("rollout_id_in") or ())
        try:
            path, body = call.request(arguments)
            if call.verb == "GET":
                return _read(await self._transport.get(path, body, claims), call.answer)
            return await self._post(path, body, call.answer, claims=claims)
        except UnknownRecordError:
            if call.absent_is_404:
                return None
            raise
        except UnicodeEncodeError as error:  # of a path, or a query
            raise InvalidRecordError(f"{operation}: {error}; no id has it") from None

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[EnqueueRolloutRequest]
    ) -> Sequence[Rollout]:
        # Keys outlive the server's memory of requests: what is repeated after it was restarted is
        # queued once, too.
        name = secrets.token_urlsafe(12)
        keyed = [
            rollout.changed(
                key=rollout.key or f"{name}-{number}",
                **copy_of_changes({"input": rollout.input, "metadata": rollout.metadata}),
            )
            for number, rollout in enumerate(rollouts)
        ]
        return await self._post("/queues/rollouts/enqueue", {"rollouts": keyed}, _many_rollouts)

    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        numbers: list[int] = []
        for rollout_id, attempt_id in rollout_attempt_ids:
            body = {"rollout_id": rollout_id, "attempt_id": attempt_id}
            claims = self._claims.of([rollout_id])
            answer = await self._post("/spans/next", body, _number, claims=claims)
            numbers.append(answer["sequence_id"])
        return numbers

    async def wait_for_rollouts(
        self, *, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> list[Rollout]:
        check_seconds("timeout", timeout)
        end = float("inf") if timeout is None else time.monotonic() + timeout
        wanted = set(rollout_ids)
        while True:
            begin = time.monotonic()
            left = max(min(end - begin, LONG_POLL_SECONDS), 0.0)
            body = {"rollout_ids": list(rollout_ids), "timeout": left}
            content, headers = await self._transport.post("/waits/rollouts", body, left)
            ended = _read(content, _many_rollouts)
            complete = {rollout.rollout_id for rollout in ended} >= wanted
            # The server knows better when it is done: unknown ids are not waited for.
            done = headers.get(wire.WAIT_ENDED) == "done" and time.monotonic() < begin + left
            left = end - time.monotonic()
            if complete or done or left <= 0:
                return list(ended)
            await _pause_if_early(begin, left)

    async def turn(
        self,
        spans: Sequence[AnySpan] = (),
        *,
        finish: AttemptEnd | None = None,
        limit: int = 1,
        worker_id: str | None = None,
        wait_seconds: float = 0.0,
        key: str | None = None,
    ) -> Turn:
        """The same in one request, all or nothing; a wait that is longer goes on in others."""
        check_seconds("wait_seconds", wait_seconds)
        for span in spans:
            if isinstance(span, Span):
                check_span(span)  # here, where its fields can still be named
        if not spans and finish is None and limit <= 0:
            return Turn((), None, ())
        claim = {"limit": limit, "worker_id": worker_id, "key": key or secrets.token_urlsafe(12)}
        whose = [one.rollout_id for one in (*spans, *([finish] if finish else []))]
        *before, (ids, claims) = self._claims.portions(whose)
        receipts: list[wire.SpanReceipt] = []
        for some, shown in before:  # of a runner's spans for 200 attempts: in parts
            part = [span for span in spans if span.rollout_id in some]
            receipts += (await self._turn(part, {"finish": None}, shown)).spans
        rest = [span for span in spans if span.rollout_id in ids] if before else spans
        body: dict[str, Any] = {"finish": finish}
        attempt: Attempt | None = None
        end = time.monotonic() + max(wait_seconds, 0.0)
        while True:
            begin = time.monotonic()
            held = max(min(end - begin, LONG_POLL_SECONDS), 0.0)
            if limit > 0:
                body["claim"] = {**claim, "wait_seconds": held}
            answer = await self._turn(rest, body, claims, held)
            receipts, attempt = receipts + answer.spans, attempt or answer.attempt
            left = end - time.monotonic()
            if answer.claimed or limit <= 0 or left <= 0:
                claimed = [one.plain() for one in answer.claimed]
                return Turn(wire.with_numbers(spans, receipts), attempt, claimed)
            await _pause_if_early(begin, left)
            rest, body, claims = (), {}, []

    async def _turn(
        self,
        spans: Sequence[AnySpan],
        body: dict[str, Any],
        claims: Sequence[str],
        wait_seconds: float = 0.0,
    ) -> wire.TurnAnswer:
        """One request; what it claims, and nobody waits for any more, is given back."""
        request = secrets.token_hex(16)
        content = b'{"spans":%b,%b' % (wire.spans_json(spans), encode(body)[1:])
        try:
            answer = await self._post("/turn", content, _turn, wait_seconds, request, claims)
        except asyncio.CancelledError:
            if "claim" in body:
                await self._abandon(request)
            raise
        for one in answer.claimed:  # their tokens stay here
            self._claims.note(one.rollout_id, one.attempt.attempt_id, one.span_token)
        return answer

    async def _abandon(self, key: str) -> None:
        """Asked again with the same key, the server answers what it had claimed; else nothing."""
        with contextlib.suppress(AglError, TimeoutError):
            async with asyncio.timeout(2.0):
                content, _ = await self._transport.post("/turn", {}, key=key, abandoned=True)
                for claimed in _read(content, _turn).claimed:
                    await release_claim(self, claimed)

    async def _post(
        self,
        path: str,
        body: Any,
        adapter: TypeAdapter[T],
        wait_seconds: float = 0.0,
        key: str | None = None,
        claims: Sequence[str] = (),
    ) -> T:
        content, _ = await self._transport.post(path, body, wait_seconds, key, claims=claims)
        return _read(content, adapter)


def _read(content: bytes, adapter: TypeAdapter[T]) -> T:
    try:
        return adapter.validate_json(content)
    except ValidationError as error:
        raise StoreError(
            f"the store's answer was not understood; is it an agl store? {error}"
        ) from None


async def _pause_if_early(begin: float, left: float) -> None:
    """Ask less often while the server closes, and holds no request."""
    if time.monotonic() - begin < 0.25:
        await asyncio.sleep(min(left, 0.25))
