"""Server-sent events: a word when a store has changed; the page then asks for what it shows."""

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from agl.errors import AglError, ConfigError
from agl_http.layers import CLOSING
from agl_records.ledger.ledger import load_parts
from agl_ui.data_sources import DataSource, DataSources

logger = logging.getLogger("agl.ui")

LOOK_SECONDS = 1.0
"""How often a store is looked at while a page of it is open."""
LOOK_TIMES = 30
"""And no sooner than so many times what the last look took."""
WORD_SECONDS = 15.0
"""How often a silent connection gets a word, so that who is gone is noticed."""


async def state_of(source: DataSource, rollout_id: str) -> str:
    """A text that is another one when what is known of a rollout has changed: its cursor.

    Args:
        source: The store that has it.
        rollout_id: Which; "" for the whole store.
    """
    if not rollout_id:
        return await source.state()
    store = source.store
    rollout = await store.get_rollout_by_id(rollout_id)
    attempts = await store.query_attempts(rollout_id)
    num_spans = (await store.query_spans(rollout_id, limit=1)).total
    parts = await load_parts(store, [rollout_id], lost=None)
    accounts = [(one.run, one.step, one.lost, one.generation) for one in parts]
    seen = [(one.sequence_id, one.status, one.end_time) for one in attempts]
    digest = hashlib.blake2b(
        repr([rollout and rollout.status, seen, accounts]).encode(), digest_size=6
    )
    return f"{num_spans}-{digest.hexdigest()}"


class Watch:
    """Looks at one store, at one rollout of it, or at all stores, once for all pages of it.

    Args:
        source: Which store, or all.
        about: Which rollout of the one store; "" for all.
    """

    def __init__(self, source: DataSource | DataSources, about: str = "") -> None:
        self._source, self._about, self._source_state = source, about, ""
        self._changed = asyncio.Event()
        """Set when the state is another one; each state has its own."""
        self._state, self._watchers = "", 0
        self._task: asyncio.Task[None] | None = None

    async def follow(self, seen: str, closing: asyncio.Event) -> AsyncGenerator[str]:
        """The state whenever it is another one than the last; empty where nothing has changed.

        Args:
            seen: The state that is known.
            closing: Set when the server ends, which is the end of this.
        """
        self._watchers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._look())
        ends = asyncio.create_task(closing.wait())
        try:
            while not closing.is_set():
                if self._state not in (seen, ""):
                    yield (seen := self._state)
                    continue
                changes = asyncio.create_task(self._changed.wait())
                try:
                    done, _ = await asyncio.wait(
                        {changes, ends}, timeout=WORD_SECONDS, return_when=asyncio.FIRST_COMPLETED
                    )
                finally:  # a client may go away meanwhile
                    changes.cancel()
                if not done:
                    yield ""
        finally:
            ends.cancel()
            self._watchers -= 1
            watches = self._source.memory.get("watches", {})
            if not self._watchers and watches.get(self._about) is self:
                del watches[self._about]

    async def _look(self) -> None:
        told = ""
        try:
            while self._watchers:
                begin = time.monotonic()
                try:
                    state = await self._now()
                except Exception as error:  # a look; the next one may do better
                    state = "unreadable"
                    if not isinstance(error, AglError) and told != repr(error):
                        told = repr(error)
                        logger.error("%s cannot be looked at", self._source.title, exc_info=error)
                if state != self._state:
                    self._state, changed = state, self._changed
                    self._changed = asyncio.Event()
                    changed.set()
                took = time.monotonic() - begin
                await asyncio.sleep(max(LOOK_SECONDS, LOOK_TIMES * took))
        finally:
            self._task = None

    async def _now(self) -> str:
        """The state; that of a rollout is looked up where its store has changed."""
        before, self._source_state = self._source_state, await self._source.state()
        if not self._about or isinstance(self._source, DataSources):
            return self._source_state
        if self._state and before == self._source_state:
            return self._state
        return await state_of(self._source, self._about)


def events(sources: DataSources) -> Callable[[Request], Awaitable[Response]]:
    """The route that tells of changes of one store, or of all where the path names none.

    ``since`` is the state that the page shows, and ``rollout`` the only one that it is about.
    """

    async def answer(request: Request) -> Response:
        key = request.path_params.get("key")
        try:
            source = sources if key is None else sources.get(key)
        except ConfigError:
            return Response("no such store", 404, media_type="text/plain")
        about = request.query_params.get("rollout", "")[:200]
        watches: dict[str, Watch] = source.memory.setdefault("watches", {})
        watch = watches.setdefault(about, Watch(source, about))
        seen = request.headers.get("last-event-id") or request.query_params.get("since", "")

        # Not of every server that these pages may be mounted in.
        closing: asyncio.Event = request.scope.get("state", {}).get(CLOSING) or asyncio.Event()

        async def stream() -> AsyncGenerator[str]:
            yield "retry: 3000\n\n"
            async for state in watch.follow(seen, closing):
                yield f"id: {state}\nevent: change\ndata: {state}\n\n" if state else ": \n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")

    return answer
