"""Spans as bytes, in JSON and in OTLP, with attributes that were drawn beforehand.

A load program shares the machine with the server that it measures, so it should cost little:
random attributes are drawn once, encoded once, and then picked at random.
"""

import json
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import (
    ResourceSpans,
    ScopeSpans,
    Span,
    Status,
    TracesData,
)

from agl.semconv import AGL_ANNOTATION, LightningResourceAttributes, LightningSpanAttributes

POOL_SIZE = 256
REWARD = f"{LightningSpanAttributes.REWARD}.0.value"
TASK = "bench.task"


class Attributes:
    """Attributes of a span, encoded.

    Args:
        values: Strings and floats by name.
    """

    def __init__(self, values: dict[str, str | float]) -> None:
        self.json = json.dumps(values)[1:-1]
        span = Span(attributes=[_key_value(k, v) for k, v in values.items()])
        self.otlp = span.SerializeToString()


class AttributePool:
    """Attributes as the published workloads draw them: nested dictionaries, flattened.

    Depth 1 to 3, breadth 2 to 6, keys of 3 to 20 and values of 5 to 300 characters.

    Args:
        seed: Of the draw.
    """

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._pool = [
            Attributes(dict(self._flat(self._draw.randint(1, 3), ""))) for _ in range(POOL_SIZE)
        ]

    def pick(self) -> Attributes:
        """One of the pool."""
        return self._draw.choice(self._pool)

    def _flat(self, depth: int, prefix: str) -> list[tuple[str, str]]:
        items: list[tuple[str, str]] = []
        for _ in range(self._draw.randint(2, 6)):
            key = prefix + self._text(3, 20)
            if depth > 1:
                items += self._flat(depth - 1, key + ".")
            else:
                items.append((key, self._text(5, 300)))
        return items

    def _text(self, shortest: int, longest: int) -> str:
        length = self._draw.randint(shortest, longest)
        return "".join(self._draw.choices(string.ascii_letters, k=length))


@dataclass(frozen=True, slots=True)
class SpanDraft:
    """A span that ended; ids are hex."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    start_time: float
    end_time: float
    attributes: Attributes


def reward_draft(value: float, trace_id: str, span_id: str, now: float) -> SpanDraft:
    """A span that carries a reward."""
    attributes = Attributes({f"{LightningSpanAttributes.REWARD}.0.name": "primary", REWARD: value})
    return SpanDraft(AGL_ANNOTATION, trace_id, span_id, None, now, now, attributes)


def json_span(draft: SpanDraft, rollout_id: str, attempt_id: str, sequence_id: int) -> str:
    """The span as the store's JSON.

    Args:
        draft: The span; its texts need no escapes.
        rollout_id: Whose it is.
        attempt_id: Whose it is.
        sequence_id: Its number; 0 asks our store for the next one.
    """
    parent = f'"{draft.parent_id}"' if draft.parent_id else "null"
    return (
        f'{{"rollout_id":"{rollout_id}","attempt_id":"{attempt_id}","sequence_id":{sequence_id},'
        f'"trace_id":"{draft.trace_id}","span_id":"{draft.span_id}","parent_id":{parent},'
        f'"name":"{draft.name}","status":{{"status_code":"OK","description":null}},'
        f'"attributes":{{{draft.attributes.json}}},"events":[],"links":[],'
        f'"start_time":{draft.start_time!r},"end_time":{draft.end_time!r},"context":null,'
        f'"parent":null,"resource":{{"attributes":{{}},"schema_url":""}}}}'
    )


def otlp_request(drafts: Sequence[SpanDraft], rollout_id: str, attempt_id: str) -> bytes:
    """An ``ExportTraceServiceRequest`` with the spans of one attempt."""
    resource = Resource(
        attributes=[
            _key_value(LightningResourceAttributes.ROLLOUT_ID, rollout_id),
            _key_value(LightningResourceAttributes.ATTEMPT_ID, attempt_id),
        ]
    )
    scope = ScopeSpans(spans=map(_otlp_span, drafts))
    spans = ResourceSpans(resource=resource, scope_spans=[scope])
    return TracesData(resource_spans=[spans]).SerializeToString()


def _otlp_span(draft: SpanDraft) -> Span:
    span = Span(
        trace_id=bytes.fromhex(draft.trace_id),
        span_id=bytes.fromhex(draft.span_id),
        parent_span_id=bytes.fromhex(draft.parent_id or ""),
        name=draft.name,
        start_time_unix_nano=int(draft.start_time * 1e9),
        end_time_unix_nano=int(draft.end_time * 1e9),
        status=Status(code=Status.STATUS_CODE_OK),
    )
    span.MergeFromString(draft.attributes.otlp)
    return span


def _key_value(key: str, value: Any) -> KeyValue:
    if isinstance(value, float):
        return KeyValue(key=key, value=AnyValue(double_value=value))
    return KeyValue(key=key, value=AnyValue(string_value=value))
