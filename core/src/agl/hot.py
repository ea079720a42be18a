"""The requests of every rollout's life, answered without FastAPI's machinery.

FastAPI describes these routes and can answer them as well. What cannot be read here goes on to it,
unchanged, so that what is taken and what is refused, and how, stands in one place.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from fastapi import Request, Response

from agl import packing, wire
from agl.asgi import ROUTE, App, Message, Receive, Scope, Send, header
from agl.errors import AglError
from agl.routes import PROTOBUF, StoreRoutes
from agl.store.base import AttemptEnd
from agl.store.packed import PackedSpan

M = TypeVar("M", bound=wire.Body)

_ATTEMPTS = f"{wire.PREFIX}/rollouts/"
_ATTEMPT_PATH = f"{_ATTEMPTS}{{rollout_id}}/attempts/{{attempt_id}}"
_ATTEMPT_PATH_STEPS = 7
"""The empty one in front included."""


_Answer = Callable[[Request, Any], Awaitable[Response]]


class _Route(NamedTuple):
    path: str
    read: Callable[[bytes], Any]
    """Makes the body into what ``answer`` takes; a ValueError leaves the request to FastAPI."""
    answer: _Answer


class HotRoutes:
    """Answers what is asked most, and passes everything else on.

    Args:
        app: Where the rest goes.
        routes: What answers.
        refused: Makes the answer of an error.
    """

    def __init__(
        self, app: App, routes: StoreRoutes, refused: Callable[[AglError], Response]
    ) -> None:
        self.app = app
        self.routes = routes
        self.refused = refused
        by_path: dict[str, tuple[Callable[[bytes], Any], _Answer]] = {
            "/queues/rollouts/enqueue": (_reader(wire.EnqueueBody), _of_body(routes.enqueue)),
            "/queues/rollouts/dequeue": (_reader(wire.DequeueBody), routes.dequeue),
            "/waits/rollouts": (_reader(wire.WaitBody), routes.wait),
            "/spans": (packing.pack, routes.add_packed_span),
            "/spans/batch": (packing.pack_all, routes.add_packed_spans),
            "/spans/next": (_reader(wire.SequenceBody), _of_body(routes.next_sequence_id)),
            "/turn": (_read_turn, routes.take_turn),
        }
        self._routes = {
            path: _Route(path, *route)
            for path, route in (
                *((wire.PREFIX + path, route) for path, route in by_path.items()),
                (wire.TRACES, (bytes, routes.store_traces)),
            )
        }
        self._read_change = _reader(wire.AttemptChange)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        route = self._route(scope)
        if route is None:
            return await self.app(scope, receive, send)
        message = await receive()  # the whole body; see WholeBody
        try:
            body = route.read(message["body"])
        except (ValueError, RecursionError):
            return await self.app(scope, _again(message, receive), send)
        scope[ROUTE] = route.path
        try:
            response = await route.answer(Request(scope, receive), body)
        except AglError as error:
            response = self.refused(error)
        return await response(scope, receive, send)

    def _route(self, scope: Scope) -> _Route | None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return None
        path: str = scope["path"]
        route = self._routes.get(path)
        if route is None:
            if not path.startswith(_ATTEMPTS):
                return None
            steps = path.split("/")
            if len(steps) != _ATTEMPT_PATH_STEPS or steps[5] != "attempts" or steps[6] == "search":
                return None
            rollout_id, attempt_id = steps[4], steps[6]
            if not rollout_id or not attempt_id:
                return None
            change = partial(self.routes.update_attempt, rollout_id, attempt_id)
            route = _Route(_ATTEMPT_PATH, self._read_change, _of_body(change))
        kind = header(scope, b"content-type")
        expected = PROTOBUF if path == wire.TRACES else "application/json"
        return route if kind.startswith(expected.encode()) else None


def _of_body(answer: Callable[[Any], Awaitable[Response]]) -> _Answer:
    return lambda request, body: answer(body)


def _reader(model: type[M]) -> Callable[[bytes], M]:
    return lambda body: model.model_validate(wire.decode(body))


def _read_turn(
    body: bytes,
) -> tuple[list[PackedSpan], AttemptEnd | None, wire.DequeueBody | None]:
    turn = packing.read_turn(body)
    end, claim = turn.finish, turn.claim
    return (
        [packing.pack(raw) for raw in turn.spans],
        end and AttemptEnd(rollout_id=end.rollout_id, attempt_id=end.attempt_id, status=end.status),
        claim
        and wire.DequeueBody(
            limit=claim.limit,
            worker_id=claim.worker_id,
            wait_seconds=claim.wait_seconds,
            key=claim.key,
        ),
    )


def _again(message: Message, receive: Receive) -> Receive:
    """The same request to read once more."""
    fresh = True

    async def again() -> Message:
        nonlocal fresh
        if fresh:
            fresh = False
            return message
        return await receive()

    return again
