"""Spans: what an attempt did, in OpenTelemetry's terms."""

import secrets
from collections.abc import Mapping, Sequence
from operator import not_
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import ConfigDict, Field

from agl.semconv import AGL_VIRTUAL
from agl.types.records import Record, construct

if TYPE_CHECKING:
    from opentelemetry import trace as trace_api
    from opentelemetry.sdk.resources import Resource as SdkResource
    from opentelemetry.sdk.trace import Event as SdkEvent, ReadableSpan
    from opentelemetry.trace import Status as SdkStatus

AttributeValue = (
    str | bool | int | float | Sequence[str] | Sequence[bool] | Sequence[int] | Sequence[float]
)
Attributes = dict[str, AttributeValue]
"""Attribute name -> scalar or homogeneous sequence."""
TraceState = dict[str, str]
StatusCode = Literal["UNSET", "OK", "ERROR"]
Writer = Literal["agent", "runner", "gateway", "algorithm"]
"""Who wrote a span: code of the agent, the runner that ran it, a gateway, or an algorithm."""

UNASSIGNED = 0
"""``Span.sequence_id`` of a span whose number the store shall assign; stored ones begin at 1."""


class _SpanPart(Record):
    # 0.3 keeps unknown keys of spans and their parts; so do we: nothing disappears. Nor does NaN
    # among them become null: it makes JSON that is refused.
    model_config = ConfigDict(extra="allow", ser_json_inf_nan="constants")


class SpanContext(_SpanPart):
    """Ids of a span."""

    trace_id: str
    span_id: str
    is_remote: bool
    trace_state: TraceState

    @classmethod
    def from_opentelemetry(cls, src: "trace_api.SpanContext") -> "SpanContext":
        """From OpenTelemetry's object; ids become lower-case hex."""
        state = dict(src.trace_state.items()) if src.trace_state else {}
        ids = {"trace_id": f"{src.trace_id:032x}", "span_id": f"{src.span_id:016x}"}
        return construct(cls, {**ids, "is_remote": src.is_remote, "trace_state": state}, extra={})


class TraceStatus(_SpanPart):
    """Outcome of a span."""

    status_code: StatusCode
    description: str | None = None

    @classmethod
    def from_opentelemetry(cls, src: "SdkStatus") -> "TraceStatus":
        """From OpenTelemetry's object."""
        code = src.status_code.name
        return OK if code == "OK" else cls(status_code=code, description=src.description)


OK = TraceStatus(status_code="OK")


class Event(_SpanPart):
    """Something that happened at one moment of a span."""

    name: str
    attributes: Attributes
    timestamp: float | None = None
    """Unix seconds."""

    @classmethod
    def from_opentelemetry(cls, src: "SdkEvent") -> "Event":
        """From OpenTelemetry's object; nanoseconds become seconds."""
        attributes, timestamp = span_attributes(src.attributes), seconds(src.timestamp)
        return cls(name=src.name, attributes=attributes, timestamp=timestamp)


class Link(_SpanPart):
    """Reference from a span to another one."""

    context: SpanContext
    attributes: Attributes | None = None

    @classmethod
    def from_opentelemetry(cls, src: "trace_api.Link") -> "Link":
        """From OpenTelemetry's object."""
        context = SpanContext.from_opentelemetry(src.context)
        return cls(context=context, attributes=span_attributes(src.attributes))


class OtelResource(Record):
    """Attributes of the process (or part of one) that wrote a span."""

    attributes: Attributes
    schema_url: str

    @classmethod
    def from_opentelemetry(cls, src: "SdkResource") -> "OtelResource":
        """From OpenTelemetry's object."""
        return cls(attributes=span_attributes(src.attributes), schema_url=src.schema_url)


class SpanCoreFields(Record):
    """A span before it belongs to an attempt: name, status, attributes, times."""

    name: str
    status: TraceStatus
    attributes: Attributes
    start_time: float | None
    end_time: float | None


UNSAID = frozenset({"writer", "late"})
"""Fields of a span that are left out of its JSON where they say nothing."""


class Span(_SpanPart):
    """A span of one attempt, as the store keeps it."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    """Order within the rollout: a first attempt's numbers begin at 1, a later attempt's above those
    that the attempts before it have by then. ``UNASSIGNED`` asks the store for the next one."""
    trace_id: str
    """32 hex digits."""
    span_id: str
    """16 hex digits; unique within the attempt."""
    parent_id: str | None
    name: str
    status: TraceStatus
    attributes: Attributes
    events: list[Event]
    links: list[Link]
    start_time: float | None
    """Unix seconds."""
    end_time: float | None
    """Unix seconds."""
    context: SpanContext | None
    parent: SpanContext | None
    resource: OtelResource
    writer: Writer | None = Field(default=None, exclude_if=not_)
    """Who wrote it. A server sets it by the token of the request; only an admin's token may say
    ``gateway`` or ``algorithm``, or say nothing, as who came by 0.3's client does. Not in 0.3."""
    late: bool = Field(default=False, exclude_if=not_)
    """It came after the end of its attempt, or after another one of its rollout had begun, and from
    no algorithm. It is kept, and counts for nothing: it is no reward and no call. Not in 0.3."""

    @classmethod
    def from_opentelemetry(
        cls, src: "ReadableSpan", rollout_id: str, attempt_id: str, sequence_id: int
    ) -> "Span":
        """From a finished span of the OpenTelemetry SDK; a ValueError if it has no context."""
        if src.context is None:
            raise ValueError(
                f"span {src.name!r} has no context; only spans that were started can be stored"
            )
        context = SpanContext.from_opentelemetry(src.context)
        parent = SpanContext.from_opentelemetry(src.parent) if src.parent else None
        values = {
            "rollout_id": rollout_id,
            "attempt_id": attempt_id,
            "sequence_id": sequence_id,
            "trace_id": context.trace_id,
            "span_id": context.span_id,
            "parent_id": parent.span_id if parent else None,
            "name": str(src.name),
            "status": TraceStatus.from_opentelemetry(src.status),
            "attributes": span_attributes(src.attributes),
            "events": [Event.from_opentelemetry(event) for event in src.events],
            "links": [Link.from_opentelemetry(link) for link in src.links],
            "start_time": seconds(src.start_time),
            "end_time": seconds(src.end_time),
            "context": context,
            "parent": parent,
            "resource": OtelResource.from_opentelemetry(src.resource),
            "writer": None,
            "late": False,
        }
        scope = src.instrumentation_scope.name if src.instrumentation_scope else "agl"
        extra = {} if scope in ("agl", "agentlightning") else {"scope": scope}
        return construct(cls, values, extra=extra)

    @classmethod
    def from_attributes(
        cls,
        *,
        attributes: Attributes,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        sequence_id: int | None = None,
        name: str | None = None,
        trace_id: str | None = None,
        span_id: str | None = None,
        parent_id: str | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
        resource: OtelResource | None = None,
        status: TraceStatus | None = None,
    ) -> "Span":
        """A span made by hand.

        What is left out gets fresh ids, status OK and number ``UNASSIGNED``; times stay unknown.
        """
        trace_id = trace_id or secrets.token_hex(16)
        span_id = span_id or secrets.token_hex(8)
        of_trace: dict[str, Any] = {"trace_id": trace_id, "is_remote": False, "trace_state": {}}
        return cls(
            rollout_id=rollout_id or "",
            attempt_id=attempt_id or "",
            sequence_id=UNASSIGNED if sequence_id is None else sequence_id,
            trace_id=trace_id,
            span_id=span_id,
            parent_id=parent_id,
            name=name or AGL_VIRTUAL,
            status=status or OK,
            attributes=attributes,
            events=[],
            links=[],
            start_time=start_time,
            end_time=end_time,
            context=SpanContext(span_id=span_id, **of_trace),
            parent=SpanContext(span_id=parent_id, **of_trace) if parent_id else None,
            resource=resource or OtelResource(attributes={}, schema_url=""),
        )

    @classmethod
    def from_core_fields(
        cls,
        core: SpanCoreFields,
        *,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        sequence_id: int | None = None,
    ) -> "Span":
        """Give core fields a place in an attempt, with fresh ids."""
        ids: Any = {"rollout_id": rollout_id, "attempt_id": attempt_id}
        return cls.from_attributes(sequence_id=sequence_id, **ids, **dict(core))


SpanLike = Any
"""A ``Span`` or an OpenTelemetry ``ReadableSpan``: both have ``name`` and ``attributes``."""


class RewardDimension(Record):
    """One named reward of a span; index 0 of a span's list is the primary one."""

    name: str
    value: float = Field(allow_inf_nan=False)


def seconds(timestamp: int | float | None) -> float | None:
    """Unix seconds out of OpenTelemetry's nanoseconds; up to 1e12 it is taken as seconds."""
    if timestamp is None:
        return None
    return timestamp / 1e9 if timestamp > 1e12 else float(timestamp)


def span_attributes(attributes: Mapping[str, Any] | None) -> Attributes:
    """Those of OpenTelemetry as a span keeps them."""
    found: Attributes = {}
    for key, value in (attributes or {}).items():
        if value is not None:  # newer SDKs let it through, and AgentOps sets it
            unfold(found, key, value)
    return found


def unfold(attributes: Attributes, key: str, value: Any) -> None:
    """Set an attribute from any value that OpenTelemetry has, each part of it under its own key.

    Of mappings and of lists of several kinds; bytes become hex digits, and nothing an empty text.
    A second value of one key is kept under it with ``.again``.
    """
    if isinstance(value, Mapping) and value:
        for name, item in cast(Mapping[str, Any], value).items():
            unfold(attributes, f"{key}.{name}", item)
    elif isinstance(value, list | tuple):
        items = list(cast(Sequence[Any], value))
        kinds = set(map(type, items))
        if not kinds or (len(kinds) == 1 and kinds <= {str, bool, int, float}):
            attributes[_free(attributes, key)] = items
            return
        for index, item in enumerate(items):
            unfold(attributes, f"{key}.{index}", item)
    elif isinstance(value, str | bool | int | float):
        attributes[_free(attributes, key)] = value
    else:
        attributes[_free(attributes, key)] = value.hex() if isinstance(value, bytes) else ""


def _free(attributes: Attributes, key: str) -> str:
    while key in attributes:
        key += ".again"
    return key
