"""Where each operation of the store stands in the HTTP interface: a line for each.

The bodies, queries and answers follow from the signatures in the contract, for the client, the
server and its description alike. Operations that wait or that are hot are written by hand: see
the methods of ``client.py`` and ``routes.py``.
"""

import functools
import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints
from urllib.parse import quote

from pydantic import TypeAdapter, WithJsonSchema, create_model

from agl.errors import InvalidQueryError, UnknownRecordError
from agl.store.base import FilterLogic, LightningStore as S, SortOrder
from agl.store.operation import UNSET, Unset
from agl.types import AttemptedRollout, AttemptStatus, PaginatedResult, Rollout, RolloutStatus
from agl_http.wire import Body

AnyRollout = AttemptedRollout | Rollout
"""A rollout comes with its attempt where it has one."""


@dataclass(frozen=True, eq=False)
class Call:
    """One operation over HTTP."""

    method: Callable[..., Any]
    verb: Literal["GET", "POST"]
    path: str
    """Parameters in braces; one with ``:path`` may hold slashes."""
    also_get: str | None = None
    """The same with a query string. Unlike it, a body can say "none of them"."""
    status: int = 200
    whole: str | None = None
    """The parameter that the body is, instead of an object of parameters."""
    may_be_empty: bool = False
    """Whether the body can be left out."""
    answers: Any = None
    """What the answer is on the wire, where that is not what the contract says."""
    absent_is_404: bool = False
    """Whether no record is an error of the interface, instead of null."""
    older: Mapping[str, str] = field(default_factory=dict[str, str])
    """0.3's name of a parameter -> its name."""

    @property
    def name(self) -> str:
        return self.method.__name__

    @functools.cached_property
    def hints(self) -> dict[str, Any]:
        """The types of the parameters, and of the answer as ``return``."""
        return get_type_hints(self.method, include_extras=True)

    @functools.cached_property
    def defaults(self) -> dict[str, Any]:
        """Of the parameters that can be left out."""
        parameters = inspect.signature(self.method).parameters.values()
        return {one.name: one.default for one in parameters if one.default is not one.empty}

    @functools.cached_property
    def changes(self) -> tuple[str, ...]:
        """Fields that an update changes where they are given."""
        return tuple(name for name, value in self.defaults.items() if value is UNSET)

    def complete(self, given: dict[str, Any]) -> dict[str, Any]:
        """All arguments, with the defaults of those that were not given; changes only if given."""
        if self.changes:
            return {name: value for name, value in given.items() if value is not UNSET}
        arguments = self.defaults | given
        for old, name in self.older.items():
            value = arguments.pop(old)
            if arguments[name] is None:
                arguments[name] = value
        return arguments

    @functools.cached_property
    def ids(self) -> dict[str, str]:
        """Parameters in the path -> how they stand there."""
        return {match[1]: match[0] for match in re.finditer(r"\{(\w+)(:path)?\}", self.path)}

    @functools.cached_property
    def answer_type(self) -> Any:
        return self.answers or self.hints["return"]

    @functools.cached_property
    def answer(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.answer_type)

    def request(self, arguments: dict[str, Any]) -> tuple[str, Any]:
        """Path, and body or query, of the request that says this."""
        path = self.path
        for name, place in self.ids.items():
            value = arguments.pop(name)
            step = quote(value, safe="") if place.endswith(":path}") else _segment(value)
            path = path.replace(place, step, 1)
        return path, arguments[self.whole] if self.whole else arguments

    @functools.cached_property
    def body(self) -> Any:
        """The type of the body or query: a ``Body``, that of ``whole``, or None."""
        hints = self.hints
        if self.whole:
            return hints[self.whole]
        fields: dict[str, Any] = {}
        for name in hints:
            if name in self.ids or name in self.older or name == "return":
                continue
            default = self.defaults.get(name, ...)
            kind = _wire_type(hints[name])
            fields[name] = (kind | None, None) if default is UNSET else (kind, default)
        if not fields:
            return None
        title = "".join(part.title() for part in self.name.split("_"))
        return create_model(title, __base__=Body, __doc__=self.summary, **fields)

    def arguments(self, body: Any) -> dict[str, Any]:
        """What a body says, as arguments of the operation.

        Raises:
            InvalidQueryError: It clears what cannot be cleared.
        """
        if self.whole:
            return {self.whole: body}
        if body is None:
            return {}
        given: dict[str, Any] = body.given() if self.changes else dict(body.__dict__)
        for name, value in given.items():
            if value is None and name in self._never_null:
                raise InvalidQueryError(f"{name!r} is null and cannot be cleared; leave it out")
        return given

    @functools.cached_property
    def summary(self) -> str:
        return (self.method.__doc__ or "").partition("\n\n")[0]

    @functools.cached_property
    def _never_null(self) -> frozenset[str]:
        kinds = {name: get_args(self.hints[name]) for name in self.changes}
        return frozenset(
            name for name, kind in kinds.items() if not {Any, types.NoneType} & {*kind}
        )


def _segment(record_id: str) -> str:
    """An id as one step of a path; what can be none is the id of no record."""
    if not record_id or "/" in record_id or record_id in (".", ".."):
        raise UnknownRecordError(f"no record has the id {record_id!r}")
    return quote(record_id, safe="")


_JUDGED: Final = (RolloutStatus, AttemptStatus, SortOrder, FilterLogic)
"""Words that the store judges, so that a wrong one is the same error over HTTP as without."""


def _wire_type(hint: Any) -> Any:
    """A parameter's type as a body has it."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        parts = [one for one in args if one is not Unset]
        if str in parts:  # beside which a word says nothing
            parts = [one for one in parts if get_origin(one) is not Literal]
        return functools.reduce(lambda one, other: one | other, map(_wire_type, parts))
    if hint in _JUDGED:
        return Annotated[str, WithJsonSchema(TypeAdapter(hint).json_schema())]
    return list[args[0]] if origin is cast(Any, Sequence) else hint


_QUEUE, _ROLLOUT = "/queues/rollouts/enqueue", "/rollouts/{rollout_id}"
_ATTEMPTS = f"{_ROLLOUT}/attempts"
_Page = PaginatedResult[AnyRollout]
_OLDER = {"status": "status_in", "rollout_ids": "rollout_id_in"}
_CALLS: Final = (
    Call(S.statistics, "GET", "/statistics", answers=dict[str, Any]),  # others may count more
    Call(S.enqueue_many_rollouts, "POST", _QUEUE, status=201, answers=list[AnyRollout]),
    Call(S.query_rollouts, "POST", "/rollouts/search", "/rollouts", answers=_Page, older=_OLDER),
    Call(S.start_rollout, "POST", "/rollouts", status=201),
    Call(S.get_rollout_by_id, "GET", _ROLLOUT, answers=AnyRollout, absent_is_404=True),
    Call(S.update_rollout, "POST", _ROLLOUT, answers=AnyRollout),
    Call(S.query_attempts, "POST", f"{_ATTEMPTS}/search", _ATTEMPTS),
    Call(S.start_attempt, "POST", _ATTEMPTS, status=201, may_be_empty=True),
    Call(S.get_latest_attempt, "GET", f"{_ATTEMPTS}/latest"),
    Call(S.update_attempt, "POST", f"{_ATTEMPTS}/{{attempt_id}}"),
    Call(S.query_spans, "POST", "/spans/search", "/spans"),
    Call(S.put_documents, "POST", "/documents", status=201),
    Call(S.query_documents, "POST", "/documents/search"),
    Call(S.delete_documents, "POST", "/documents/delete"),
    Call(S.delete_rollouts, "POST", "/rollouts/delete"),
    Call(S.query_resources, "GET", "/resources"),
    Call(S.add_resources, "POST", "/resources", status=201, whole="resources"),
    Call(S.get_latest_resources, "GET", "/resources/latest"),
    Call(S.get_resources_by_id, "GET", "/resources/{resources_id:path}"),
    Call(S.update_resources, "POST", "/resources/{resources_id:path}", whole="resources"),
    Call(S.query_workers, "POST", "/workers/search", "/workers"),
    Call(S.get_worker_by_id, "GET", "/workers/{worker_id:path}"),
    Call(S.update_worker, "POST", "/workers/{worker_id:path}", may_be_empty=True),
)
CALLS: Final = {call.name: call for call in _CALLS}
"""By the operation's name, in the order in which paths are tried."""
