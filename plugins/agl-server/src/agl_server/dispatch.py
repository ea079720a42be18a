"""The routes of a store server: each request for one is read, refused or carried out here."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args, get_origin
from urllib.parse import parse_qs, unquote

from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path

from agl.errors import AglError, NotAllowedError
from agl.store import answers
from agl.store.answers import RETRY_SECONDS
from agl.store.base import AttemptEnd, LightningStore
from agl.store.packed_span import AnySpan, PackedSpan
from agl.types import AttemptedRollout
from agl_http import layers, wire
from agl_http.layers import FENCE, GRANT, RECEIVED, App, Receive, Scope, Send, header
from agl_http.roles import check
from agl_http.tokens import Grant, Tokens
from agl_server.answers import error_answer
from agl_server.shapes import Shape

LARGE_BODY = 64 * 1024
"""Bytes; of larger ones only the first error is listed: all would cost far more than they."""
MAX_LISTED = 100
"""Errors of a body that an answer lists."""
_LOOKS = (("reader", "GET"), ("reader", "HEAD"))


_fence = re.compile(r"(\d{1,16}) ([^ ]+) ([^ ]+)").fullmatch


class UnreadableError(Exception):
    """A body or query is not what the route takes.

    ``detail`` is a sentence, or pydantic's errors with ``type``, ``loc`` and ``msg``.
    """

    def __init__(
        self, status: int, detail: str | list[dict[str, Any]], error_type: str = "ValidationError"
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.error_type = status, detail, error_type


@dataclass(frozen=True)
class Route:
    """One way into the server."""

    verb: Literal["GET", "POST"]
    path: str
    """Parameters in braces; one with ``:path`` may hold slashes."""
    answer: Callable[..., Awaitable[Response]]
    """Takes the request, its body, and by name the parameters in the path."""
    answers: Any = None
    """Type of the answer, for the description."""
    status: int = 200
    """Of the answer, for the description."""
    body: Any = None
    """Type of the body, or of the query where the verb is GET."""
    may_be_empty: bool = False
    read: Callable[[bytes], Any] | None = None
    """Reads most bodies for less; a ValueError leaves one to the type of ``body``."""
    name: str = ""
    says: str = ""

    async def read_request(self, scope: Scope, receive: Receive) -> Any:
        """The body or the query of a request, as ``body`` says; None where there is none.

        Raises:
            UnreadableError: It is something else.
        """
        if self.verb == "GET":
            return None if self.body is None else self._read_query(scope["query_string"])
        if self.body is None and self.read is None:
            return None
        message = await receive()  # the whole body; see WholeBody
        return self.read_body(message["body"], header(scope, b"content-type"))

    def read_body(self, body: bytes, content_type: bytes) -> Any:
        """Read a body.

        Raises:
            UnreadableError: It is something else.
        """
        if self.body is None and self.read is not None:
            return self.read(body)  # of any kind
        if not body and self.may_be_empty:
            return None
        kind = content_type.partition(b";")[0].strip().lower()
        if kind != layers.JSON and not kind.endswith(b"+json"):
            why = f"Content-Type {kind.decode('latin-1')!r}: send application/json"
            raise UnreadableError(415, why, "UnsupportedMediaType")
        if self.read is not None:
            with suppress(
                ValueError, RecursionError
            ):  # pydantic converts it, or says what is wrong
                return self.read(body)
        try:
            value = wire.decode(body)
        except (ValueError, RecursionError) as error:
            detail = {"type": "json_invalid", "loc": ["body"], "msg": f"not JSON: {error}"}
            raise UnreadableError(422, [detail]) from None
        if value is None and self.may_be_empty:
            return None
        if len(body) > LARGE_BODY and (problem := self._shape.problem(value)):
            raise UnreadableError(422, problem)
        return self._validated(value, "body")

    def _read_query(self, query: bytes) -> Any:
        given = parse_qs(query.decode("latin-1"), keep_blank_values=True)
        return self._validated(
            {name: all if name in self._lists else all[-1] for name, all in given.items()}, "query"
        )

    @cached_property
    def _lists(self) -> frozenset[str]:
        """Parameters of the query that may stand there several times."""
        fields = self.body.model_fields.items()
        return frozenset(name for name, field in fields if _takes_list(field.annotation))

    def _validated(self, value: Any, place: str) -> Any:
        try:
            return self._validate(value)
        except ValidationError as error:
            raise UnreadableError(422, _listed(error, place)) from None

    @cached_property
    def _validate(self) -> Callable[[Any], Any]:
        return TypeAdapter(self.body).validate_python

    @cached_property
    def _shape(self) -> Shape:
        return Shape(self.body)


def _takes_list(hint: Any) -> bool:
    return get_origin(hint) is list or any(map(_takes_list, get_args(hint)))


def _listed(error: ValidationError, place: str) -> list[dict[str, Any]]:
    """Pydantic's errors for an answer; of the input only a short text, as it may be large."""
    found: list[dict[str, Any]] = []
    for part in error.errors(include_url=False, include_context=False)[:MAX_LISTED]:
        said, given = part["msg"], part["input"]
        if isinstance(given, str) and len(given) <= 50:
            said = f"{given!r}: {said}"
        found.append({"type": part["type"], "loc": [place, *part["loc"]], "msg": said})
    return found


class Dispatch:
    """Answers requests for the routes of the store, in whose order paths are tried.

    Everything else goes on to ``app``, from admins, and from readers to look at.
    """

    def __init__(self, app: App, routes: Sequence[Route]) -> None:
        self.app = app
        self._whole = {(one.verb, one.path): one for one in routes if "{" not in one.path}
        self._patterns = [(compile_path(one.path)[0], one) for one in routes]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        RETRY_SECONDS.set(0.0)  # for its task: who gets a 503 decides how long it waits
        # None, too: the task of a pipelined request begins with what the one before it had.
        answers.FENCE.set(None)
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        route, ids = self._find(scope["method"], scope["path"])
        if route is not None:
            scope[layers.ROUTE] = route.path
            said = header(scope, RECEIVED[FENCE]).decode("latin-1")
            if fence := _fence(said):
                given = answers.Fence(unquote(fence[2]), unquote(fence[3]), int(fence[1]))
                answers.FENCE.set(given)
            if said and not fence:  # whoever sends one must not write without it
                why = f"{FENCE}: {said!r}: expected a version, a quoted kind and a quoted key"
                response = error_answer(400, why, "ValidationError")
            else:
                response = await self._answer(route, scope, receive, ids)
        elif verbs := {one.verb for pattern, one in self._patterns if pattern.match(scope["path"])}:
            allowed = ", ".join(sorted(verbs))
            why = f"{scope['method']} is not for this path: send {allowed}"
            response = error_answer(405, why, "MethodNotAllowed", {"Allow": allowed})
        elif (role := scope[GRANT].role) != "admin" and (role, scope["method"]) not in _LOOKS:
            why = (
                f"a token of role {role!r} may not {scope['method']} {scope['path']}; an admin "
                "may, and a reader may look at it"
            )
            response = error_answer(403, why, "NotAllowedError")
        else:
            return await self.app(scope, receive, send)
        return await response(scope, receive, send)

    async def _answer(
        self, route: Route, scope: Scope, receive: Receive, ids: Mapping[str, str]
    ) -> Response:
        try:
            body = await route.read_request(scope, receive)
            return await route.answer(Request(scope, receive), body, **ids)
        except UnreadableError as error:
            return error_answer(error.status, error.detail, error.error_type)
        except AglError as error:
            return error_answer(wire.status_of(error), str(error), type(error).__name__)

    def _find(self, verb: str, path: str) -> tuple[Route | None, dict[str, str]]:
        """The route of a request, and the parameters that stand in its path."""
        if route := self._whole.get((verb, path)):  # nearly all
            return route, {}
        for pattern, route in self._patterns:
            if route.verb == verb and (match := pattern.match(path)):
                return route, match.groupdict()
        return None, {}


_many_attempted = TypeAdapter(list[AttemptedRollout])
_attempted = TypeAdapter(AttemptedRollout)


class Grants:
    """Looks at what ``Authenticated`` noted of each request; without tokens nobody needs one."""

    def __init__(self, store: LightningStore, tokens: Tokens | None) -> None:
        self._store, self._tokens = store, tokens

    async def check(self, request: Request, operation: str, arguments: Mapping[str, Any]) -> None:
        """Refuse what the request's token does not allow; see ``agl_http.roles.check``."""
        grant: Grant = request.scope[GRANT]
        if grant.role == "admin":
            return
        if operation == "update_rollout":  # for whoever claimed it last, and for nobody before
            latest = await self._store.get_latest_attempt(arguments["rollout_id"])
            arguments = {**arguments, "attempt_id": latest.attempt_id if latest else ""}
        check(grant, self._claims(request), operation, arguments)

    def _claims(self, request: Request) -> list[Grant]:
        shown = header(request.scope, RECEIVED[layers.ATTEMPTS]).decode("latin-1")
        if self._tokens is None or not shown:
            return []
        return [one for token in shown.split(",") if (one := self._tokens.read(token.strip()))]

    def key(self, request: Request, key: str | None) -> str | None:
        """The key of a claim, which with another token is another one."""
        grant: Grant = request.scope[GRANT]
        own = grant.role == "admin" or key is None
        return key if own else f"{grant.role}.{grant.expires}.{key}"

    def is_reader(self, request: Request) -> bool:
        """Whether the answer goes to one who only looks."""
        return request.scope[GRANT].role == "reader"

    def written(
        self,
        request: Request,
        spans: Sequence[AnySpan],
        operation: str = "add_many_spans",
        finish: AttemptEnd | None = None,
    ) -> Sequence[AnySpan]:
        """The spans, each with its writer as the request's token says.

        Raises:
            NotAllowedError: It does not allow to write them, or to end ``finish`` beside that.
        """
        role = request.scope[GRANT].role
        if role == "admin":
            return spans
        attempts = {(span.rollout_id, span.attempt_id) for span in spans}
        if finish is not None:
            attempts.add((finish.rollout_id, finish.attempt_id))
        check(request.scope[GRANT], self._claims(request), operation, {}, attempts)
        is_agents = {span.writer for span in spans} <= {"agent"}  # nearly always
        return spans if is_agents else [_signed(span, role) for span in spans]

    def claims_json(self, claimed: Sequence[AttemptedRollout]) -> bytes:
        """What was claimed, each with the token of its attempt; see ``wire.Claimed``."""
        if self._tokens is None:
            return _many_attempted.dump_json(list(claimed))
        found: list[bytes] = []
        for one in claimed:
            token = self._tokens.issue("attempt", one.rollout_id, one.attempt.attempt_id)
            # Validated records are not validated again for one more field.
            found.append(
                b'%s,"span_token":"%s"}' % (_attempted.dump_json(one)[:-1], token.encode())
            )
        return b"[%s]" % b",".join(found)


def _signed(span: AnySpan, role: str) -> AnySpan:
    """The span as one of this role may write it: a runner for itself or its agent.

    Raises:
        NotAllowedError: It says that another wrote it.
    """
    if span.writer == "agent" or (span.writer, role) == ("runner", "runner"):
        return span
    if span.writer is None or role == "attempt":
        if isinstance(span, PackedSpan):
            return span.with_field('"writer":"agent"')._replace(writer="agent")
        return span.changed(writer="agent")
    raise NotAllowedError(
        f"span {span.name!r} of attempt {span.attempt_id!r}: a token of role {role!r} may not "
        f"write as {span.writer!r}; leave 'writer' out"
    )
