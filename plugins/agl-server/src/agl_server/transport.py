"""Requests to a store server: one connection pool per event loop, patient with outages."""

import asyncio
import json
import logging
import os
import random
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit
from weakref import WeakKeyDictionary

import aiohttp
import pydantic_core
from pydantic import BaseModel
from yarl import URL

from agl.errors import (
    AglError,
    ConfigError,
    InvalidRecordError,
    StoreAwayError,
    StoreUnavailableError,
)
from agl.store.answers import FENCE as STORE_FENCE
from agl_http import wire
from agl_http.addresses import UNIX_SCHEME, socket_path
from agl_http.layers import ABANDONED, ATTEMPTS, FENCE, IDEMPOTENCY_KEY
from agl_server.runner_tokens import TokenSlot

logger = logging.getLogger("agl.server")

RETRY_DELAYS = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0, *[8.0] * 7)
"""A store that is away for a minute is waited for, once in an outage."""
NUM_SHORT_DELAYS = 3
"""Of these, for requests after one that has waited for all of them in vain."""

_RETRIED = {408, 429, 502, 503, 504}


class _NoAnswer(Exception):
    """One try failed in a way that the next may not."""

    def __init__(self, reason: str, *, lost: bool, error: AglError | None = None) -> None:
        super().__init__(reason)
        self.lost = lost
        """Whether the server may have carried the request out."""
        self.error = error
        """What the server said, if it was the server that said it."""


class _Request(NamedTuple):
    method: str
    path: str
    query: Mapping[str, str] = {}
    body: bytes | None = None
    headers: Mapping[str, str] = {}
    wait_seconds: float = 0.0


@dataclass(eq=False)
class Transport:
    """Sends requests, and repeats those that get no answer.

    Posts carry an ``Idempotency-Key``, by which the server carries each out once.
    ``LightningStoreClient`` says what the fields mean.

    Raises:
        ConfigError: The address is none.
    """

    addresses: list[str]
    """Of servers before one store. The first one is asked; one that gives no answer is the last."""
    token: str | TokenSlot | None = field(repr=False)
    retry_delays: Sequence[float]
    request_timeout: float
    connection_timeout: float

    def __post_init__(self) -> None:
        self.unix_path = socket_path(self.address) if len(self.addresses) == 1 else None
        for one in self.addresses if self.unix_path is None else ():
            parts = urlsplit(one)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ConfigError(
                    f"store address {one!r}: expected one like http://127.0.0.1:4747, several of "
                    f"that kind with commas between them, or {UNIX_SCHEME}://%2Ftmp%2Fagl.sock"
                )
        self.addresses = [one.rstrip("/") for one in self.addresses]
        self._sessions = _Sessions(self)
        self._is_said_away = self._is_given_up = False
        self._num_closes = 0

    @property
    def address(self) -> str:
        return self.addresses[0]

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_sessions"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._sessions = _Sessions(self)

    async def get(
        self, path: str, query: Mapping[str, Any] | None = None, claims: Sequence[str] = ()
    ) -> bytes:
        """The body that answers; entries of ``query`` that are None are left out.

        Raises:
            AglError: What the server answered, or that it cannot be reached.
        """
        given = {name: str(value) for name, value in (query or {}).items() if value is not None}
        content, _ = await self._ask(_Request("GET", path, given, None, _shown(claims)))
        return content

    async def post(
        self,
        path: str,
        body: Any,
        wait_seconds: float = 0.0,
        key: str | None = None,
        abandoned: bool = False,
        claims: Sequence[str] = (),
    ) -> tuple[bytes, Mapping[str, str]]:
        """The body and the headers that answer; for what it raises see ``get``.

        ``body`` is bytes of JSON, or models and what JSON knows. ``abandoned`` asks what another
        request of the same idempotency key, which nobody waits for any more, was answered.
        ``claims`` are tokens of attempts, beside the one of this client.
        """
        headers = {
            "Content-Type": "application/json",
            IDEMPOTENCY_KEY: key or secrets.token_hex(16),
            **_shown(claims),
        }
        if abandoned:
            headers[ABANDONED] = "1"
        if (fence := STORE_FENCE.get()) is not None:
            headers[FENCE] = f"{fence.version} {quote(fence.kind)} {quote(fence.key)}"
        content = body if isinstance(body, bytes) else encode(body)
        return await self._ask(_Request("POST", path, {}, content, headers, wait_seconds))

    async def close(self) -> None:
        self._num_closes += 1
        await self._sessions.close()

    async def _ask(self, request: _Request) -> tuple[bytes, Mapping[str, str]]:
        failure: _NoAnswer | None = None
        maybe_done = False
        begin = end = 0.0
        num_closes = self._num_closes
        others = [0.0] * (len(self.addresses) - 1)  # these are asked at once
        rounds = self.retry_delays[: NUM_SHORT_DELAYS if self._is_given_up else None]
        delays = [one for each in (0.0, *rounds) for one in (each, *others)]
        for number, delay in enumerate(delays):
            if failure is not None:
                # Many clients that lost one server must not come back in step.
                pause = min(delay * random.uniform(1.0, 1.25), end - time.monotonic())
                await asyncio.sleep(max(pause, 0.0))
            address = self.address
            try:
                answer = await self._try(request)
                self._is_said_away = self._is_given_up = False
                return answer
            except _NoAnswer as error:
                if self._num_closes != num_closes:
                    raise StoreUnavailableError(
                        f"store at {self.address}: its client was closed before {request.method} "
                        f"{request.path} was answered, and the server may have carried that out. "
                        "Await your calls before you call close() of the client"
                    ) from None
                if failure is None:
                    begin = time.monotonic()
                    end = begin + sum(rounds)
                    self._say_who_is_away(error, end - begin)
                if self.address == address and others:  # else another call has moved on
                    self.addresses.append(self.addresses.pop(0))
                failure = error
                maybe_done = maybe_done or error.lost
                if time.monotonic() > end and number >= len(others):
                    break
        assert failure is not None
        if failure.error is not None:
            raise failure.error
        self._is_given_up = True
        outage = time.monotonic() - begin
        lost = "; whether the last request was carried out is not known" if maybe_done else ""
        raise StoreAwayError(
            f"store at {', '.join(self.addresses)}: no answer to {request.method} {request.path} "
            f"for {outage:.0f} s ({failure}){lost}. Is it running, and is the address right? "
            "Start one with: agl store"
        )

    def _say_who_is_away(self, error: _NoAnswer, seconds: float) -> None:
        """Once in an outage, whoever asks."""
        if error.lost or error.error is not None or seconds <= 0 or self._is_said_away:
            return
        self._is_said_away = True
        until = time.strftime("%H:%M:%S", time.localtime(time.time() + seconds))
        at = ", ".join(self.addresses)
        logger.warning("store at %s: nothing answers (%s); trying until %s", at, error, until)

    async def _try(self, request: _Request) -> tuple[bytes, Mapping[str, str]]:
        method, path, query, body, headers, wait_seconds = request
        limit = self.request_timeout + wait_seconds
        session = await self._sessions.get()
        # Marked as encoded: ids are quoted already, and dots in them are no path steps.
        base = self.address if self.unix_path is None else "http://localhost"
        url = URL(f"{base}{wire.PREFIX}{path}", encoded=True).update_query(query)
        try:
            async with session.request(
                method,
                url,
                data=body,
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=limit, sock_connect=self.connection_timeout),
            ) as response:
                content = await response.read()
                status, answer_headers = response.status, response.headers
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _NoAnswer(str(error), lost=False) from None
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
            raise _NoAnswer(f"the connection was lost: {error}", lost=True) from None
        except TimeoutError:
            raise _NoAnswer(f"nothing came within {limit:g} s", lost=True) from None
        if status < 300:
            return content, answer_headers
        try:
            answer = json.loads(content)
        except ValueError:
            answer = None
        where = f"store at {self.address}: {method} {path}"
        error = wire.error_of(status, answer, where)
        if status == 401 and isinstance(self.token, TokenSlot):
            # The one before may have left it; the one that serves now leaves another.
            await self._sessions.close()
            raise _NoAnswer("the token was refused", lost=False, error=error)
        if status in _RETRIED:
            raise _NoAnswer(f"HTTP {status}", lost=status not in (429, 503), error=error)
        raise error


class _Sessions:
    """One HTTP session per event loop and process.

    Each lives in an asynchronous generator that is left suspended: an event loop that ends
    (``asyncio.run``) closes those, and so the session, while it still can.
    """

    def __init__(self, owner: Transport) -> None:
        self._owner = owner
        self._process = os.getpid()
        self._open: WeakKeyDictionary[
            asyncio.AbstractEventLoop,
            tuple[aiohttp.ClientSession, AsyncGenerator[aiohttp.ClientSession]],
        ] = WeakKeyDictionary()

    async def get(self) -> aiohttp.ClientSession:
        self._leave_parents_alone()
        if isinstance(self._owner.token, TokenSlot):
            await self._owner.token.wait()
        loop = asyncio.get_running_loop()
        found = self._open.get(loop)
        if found is None or found[0].closed:
            life = self._live(loop)
            found = self._open[loop] = await anext(life), life
        return found[0]

    async def _live(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[aiohttp.ClientSession]:
        token, path = self._owner.token, self._owner.unix_path
        token = token.look() if isinstance(token, TokenSlot) else token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connector = aiohttp.UnixConnector(path, limit=0) if path else aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            try:
                yield session
            finally:
                self._open.pop(loop, None)

    async def close(self) -> None:
        self._leave_parents_alone()
        here = asyncio.get_running_loop()
        for loop, (session, life) in list(self._open.items()):
            if loop is here:
                await life.aclose()
            elif loop.is_running():
                # That loop may end in this moment, and close the generator itself.
                closing = asyncio.run_coroutine_threadsafe(session.close(), loop)
                await asyncio.wait([asyncio.wrap_future(closing)], timeout=1.0)

    def _leave_parents_alone(self) -> None:
        """After a fork: the parent's sessions are neither used nor ever collected.

        Closing them here would take their sockets out of the selector that the parent still uses.
        """
        if self._process != os.getpid():
            _inherited.append(self._open)
            self._open = WeakKeyDictionary()
            self._process = os.getpid()


_inherited: list[object] = []


def _shown(claims: Sequence[str]) -> dict[str, str]:
    return {ATTEMPTS: ",".join(claims)} if claims else {}


def encode(body: Any) -> bytes:
    """JSON of models and of what JSON knows; an ``InvalidRecordError`` for anything else."""
    try:
        return json.dumps(body, default=_plain, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        message = f"not JSON, so it cannot be sent to the store: {error}"
        raise InvalidRecordError(message) from None


def _plain(value: Any) -> Any:
    # Dumped to Python first: pydantic's own JSON would turn NaN into null without a word.
    if isinstance(value, BaseModel):
        return value.model_dump()
    return pydantic_core.to_jsonable_python(value)
