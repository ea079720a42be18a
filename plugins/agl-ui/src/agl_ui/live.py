"""Server-sent events: a word when a store has changed; the page then asks for what it shows."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from agl.errors import AglError, ConfigError
from agl_ui.places import Place, Places

LOOK_SECONDS = 1.0
"""How often a store is looked at while a page of it is open."""
WORD_SECONDS = 15.0
"""How often a silent connection gets a word, so that who is gone is noticed."""


class Watch:
    """Looks at one store, once for all pages of it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._changed = asyncio.Condition()
        self._state, self._watchers = "", 0
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._is_ending = False

    def end(self) -> None:
        """Let all who follow go; from any thread."""
        self._is_ending = True

        async def tell() -> None:
            async with self._changed:
                self._changed.notify_all()

        asyncio.run_coroutine_threadsafe(tell(), self._loop)

    async def follow(self, seen: str) -> AsyncGenerator[str]:
        """The state whenever it is another one than the last; empty where nothing has changed."""
        self._watchers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._look())
        try:
            while not self._is_ending:
                async with self._changed:
                    if self._state in (seen, ""):
                        try:
                            async with asyncio.timeout(WORD_SECONDS):
                                await self._changed.wait()
                        except TimeoutError:
                            yield ""
                            continue
                    if self._is_ending:
                        return
                    seen = self._state
                yield seen
        finally:
            self._watchers -= 1

    async def _look(self) -> None:
        while self._watchers:
            try:
                state = await self._place.state()
            except AglError:
                state = "unreadable"
            if state != self._state:
                async with self._changed:
                    self._state = state
                    self._changed.notify_all()
            await asyncio.sleep(LOOK_SECONDS)
        self._task = None


def events(places: Places) -> Callable[[Request], Awaitable[Response]]:
    """The route that tells of changes; ``since`` is the state that the page shows."""

    async def answer(request: Request) -> Response:
        try:
            place = places.get(request.path_params["key"])
        except ConfigError:
            return Response("no such store", 404, media_type="text/plain")
        watch: Watch = place.memory.setdefault("watch", Watch(place))
        seen = request.headers.get("last-event-id") or request.query_params.get("since", "")

        async def stream() -> AsyncGenerator[str]:
            yield "retry: 3000\n\n"
            async for state in watch.follow(seen):
                yield f"id: {state}\nevent: change\ndata: {state}\n\n" if state else ": \n\n"

        kept = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        return StreamingResponse(stream(), headers=kept, media_type="text/event-stream")

    return answer
