"""What both sides of the store's HTTP interface share beside its operations (``calls.py``).

The interface is 0.3's (``/v1/agl``) with additions: ``POST spans/batch``, ``turn`` and
``documents``, ``wait_seconds`` when claiming, ``key`` when claiming or starting, ``error`` when an
attempt ends, ``Idempotency-Key`` on posts, and error answers that name the class of the error.
"""

from collections.abc import Sequence
from typing import Any, cast

import msgspec
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json

from agl import errors
from agl.store.base import AttemptEnd
from agl.store.packed_span import PackedSpan, packed
from agl.types import Attempt, AttemptedRollout, Span
from agl_http.tokens import Role

PREFIX = "/v1/agl"
HEALTH = f"{PREFIX}/health"
TRACES = "/v1/traces"
WAIT_ENDED = "AGL-Wait-Ended"
"""Answer header of a long poll: ``done``, or ``early`` when the server cut it short."""
RETRY_AFTER = {"Retry-After": "1"}
"""Header of every 503: whoever knows no better waits a second."""
MAX_WAIT_SECONDS = 60.0
"""Longest that one claiming request is held; clients ask again."""
MAX_BODY_BYTES = 64 * 1024 * 1024
FEATURES = ("spans/batch", "turn", "wait_seconds", "idempotency", "ledger", "indexes", "documents")
"""What ``/health`` lists, so that a client can tell this server from 0.3's."""


class Body(BaseModel):
    """Base of request bodies and queries: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")

    def given(self) -> dict[str, Any]:
        """The fields that were sent, null or not."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class DequeueBody(Body):
    """A claim."""

    limit: int = 1
    worker_id: str | None = None
    wait_seconds: float = Field(default=0.0, allow_inf_nan=False)
    key: str | None = None


class SequenceBody(Body):
    """Whose next span number."""

    rollout_id: str
    attempt_id: str


class TurnBody(Body):
    """A runner's whole turn: spans to store, an attempt to end, a claim to make, in this order."""

    spans: list[Span] = []
    finish: AttemptEnd | None = None
    claim: DequeueBody | None = None


class WaitBody(Body):
    """Which rollouts to wait for, and how long; null is without limit."""

    rollout_ids: list[str]
    timeout: float | None = None


class TokenBody(Body):
    """Which token to make; see ``agl_http.tokens``."""

    role: Role
    rollout_id: str = ""
    attempt_id: str = ""
    seconds: float | None = None


class GivenToken(Body):
    """A token to be read."""

    token: str


class SpanReceipt(BaseModel):
    """A span that was added, without what the sender knows already."""

    model_config = ConfigDict(frozen=True)

    rollout_id: str
    attempt_id: str
    span_id: str
    sequence_id: int


def spans_json(spans: Sequence[Span | PackedSpan]) -> bytes:
    """A JSON array of spans that ``check_span`` took; an ``InvalidRecordError`` if JSON cannot."""
    return f"[{','.join(packed(span).body for span in spans)}]".encode()


def with_numbers(
    spans: Sequence[Span | PackedSpan], receipts: Sequence[SpanReceipt]
) -> list[Span | PackedSpan]:
    """Those that were added, as stored."""
    numbers = {(r.rollout_id, r.attempt_id, r.span_id): r.sequence_id for r in receipts}
    added: list[Span | PackedSpan] = []
    for span in spans:
        number = numbers.pop((span.rollout_id, span.attempt_id, span.span_id), None)
        if number is None:
            continue
        if isinstance(span, PackedSpan):
            added.append(span._replace(sequence_id=number))
        else:
            added.append(span.changed(sequence_id=number))
    return added


class Claimed(AttemptedRollout):
    """What was claimed, with the token of its attempt; see ``agl_http.tokens``."""

    span_token: str | None = None

    def plain(self) -> AttemptedRollout:
        """What the runner sees."""
        fields = {name: getattr(self, name) for name in AttemptedRollout.model_fields}
        return AttemptedRollout.model_construct(self.model_fields_set & fields.keys(), **fields)


class TurnAnswer(BaseModel):
    """What a turn did."""

    spans: list[SpanReceipt]
    attempt: Attempt | None
    claimed: list[Claimed]


_decode = msgspec.json.Decoder().decode
_SHALLOW = 150
"""Brackets in a body that cannot be too deep."""
_ENVELOPE = 8
"""Levels of an answer around what was sent: reading goes less deep than writing."""


def decode(body: bytes) -> Any:
    """Read JSON, and only JSON: no NaN, no Infinity, no number beyond a float.

    Raises:
        ValueError: It is something else, or nested so deeply that no page could hold it.
        RecursionError: It is nested far too deeply.
    """
    if body.count(b"[") + body.count(b"{") > _SHALLOW:
        from_json(b"[" * _ENVELOPE + body + b"]" * _ENVELOPE)
    return _decode(body)


_STATUS = {
    errors.NotAllowedError: 403,
    errors.UnknownRecordError: 404,
    errors.ConflictError: 409,
    errors.InvalidTransitionError: 409,
    errors.NotSupportedError: 501,
    errors.StoreUnavailableError: 503,
}


def status_of(error: errors.AglError) -> int:
    """The HTTP status that answers an error."""
    return next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 400)


def error_of(status: int, answer: Any, where: str) -> errors.AglError:
    """The error that an answer stands for; the reverse of ``status_of``.

    ``answer`` is the decoded body, None if it was no JSON; ``where`` begins messages.
    """
    fields = cast(dict[str, Any], answer) if isinstance(answer, dict) else {}
    detail, name = fields.get("detail"), str(fields.get("error_type") or "")
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, errors.AglError):
        return kind(str(detail))
    if status == 401:
        return errors.ConfigError(
            f"{where}: the token is missing or was refused; use the address that the server "
            f"printed when it started, or set AGL_SERVER_TOKEN, or pass token=..., to its token"
        )
    if status in (413, 422):
        return errors.InvalidRecordError(f"{where}: HTTP {status} {name}: {sentence_of(detail)}")
    return errors.StoreError(f"{where}: HTTP {status} {name}: {sentence_of(detail)}")


def sentence_of(detail: Any) -> str:
    """FastAPI's list of validation errors in one line; anything else as it is."""
    try:
        parts = [f"{'.'.join(map(str, part['loc']))}: {part['msg']}" for part in detail[:5]]
    except (TypeError, KeyError):
        return str(detail)
    return "; ".join(parts)
