"""One model call as the gateway saw it, and the span that it becomes."""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agl.semconv import MODEL_CALL_SPAN, ModelCallAttributes as Key
from agl.types import Attributes, Span, TraceStatus

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "max_completion_tokens",
    "frequency_penalty",
    "presence_penalty",
    "seed",
)
"""Settings of a request that are recorded as ``gen_ai.request.*``."""

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


@dataclass(frozen=True)
class Origin:
    """Who called."""

    rollout_id: str | None = None
    attempt_id: str | None = None
    agent_name: str | None = None
    traceparent: str | None = None
    """W3C header of the agent's own span, which becomes the parent of the record."""

    @property
    def is_attributed(self) -> bool:
        """Whether the call belongs to an attempt, and so is recorded."""
        return self.rollout_id is not None


@dataclass
class CallRecord:
    """A model call from its arrival to its end."""

    origin: Origin
    start_time: float = field(default_factory=time.time)
    end_time: float | None = None
    request: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """As the agent sent it."""
    answer: Mapping[str, Any] | None = None
    """As the backend sent it, token ids included; of a broken stream, what came."""
    status_code: int | None = None
    """What the agent got."""
    error: str | None = None

    def end(self, *, error: str | None = None) -> bool:
        """The call is over; False when it was already."""
        if self.end_time is not None:
            return False
        self.end_time = time.time()
        self.error = error
        return True

    def to_span(self) -> Span:
        """The one span of this call; the store gives it its number."""
        parent = _TRACEPARENT.fullmatch(self.origin.traceparent or "")
        span = Span.from_attributes(
            name=MODEL_CALL_SPAN,
            rollout_id=self.origin.rollout_id,
            attempt_id=self.origin.attempt_id,
            trace_id=parent.group(1) if parent else None,
            parent_id=parent.group(2) if parent else None,
            start_time=self.start_time,
            end_time=self.end_time,
            status=TraceStatus(status_code="ERROR" if self.error else "OK", description=self.error),
            attributes={},
        )
        # Not validated: every value was made here, and checking thousands of token ids once more
        # would cost more than the rest of the record.
        attributes = {key: value for key, value in self._attributes().items() if value is not None}
        return span.model_copy(update={"attributes": attributes})

    def _attributes(self) -> dict[str, Any]:
        request, answer = self.request, self.answer or {}
        return {
            Key.OPERATION.value: "chat",
            Key.PROVIDER.value: "openai",
            Key.AGENT_NAME.value: self.origin.agent_name,
            Key.REQUEST_MODEL.value: _text(request.get("model")),
            Key.INPUT_MESSAGES.value: _json(request.get("messages")),
            Key.TOOL_DEFINITIONS.value: _json(request.get("tools")),
            **{f"gen_ai.request.{name}": _number(request.get(name)) for name in SAMPLING},
            Key.RESPONSE_ID.value: _text(answer.get("id")),
            Key.RESPONSE_MODEL.value: _text(answer.get("model")),
            **_answer_attributes(answer),
            "http.response.status_code": self.status_code,
            Key.ERROR.value: self.error,
        }


def _answer_attributes(answer: Mapping[str, Any]) -> dict[str, Any]:
    # With n > 1 every message is kept; ids and log-probabilities are those of the first choice,
    # since a call trains on one sequence.
    choices = answer.get("choices") or []
    if not choices:
        return {}
    first = choices[0]
    usage = answer.get("usage") or {}
    prompt_ids, token_ids = _ids(answer.get("prompt_token_ids")), _ids(first.get("token_ids"))
    attributes: Attributes = {
        Key.OUTPUT_MESSAGES.value: json.dumps(
            [choice.get("message") for choice in choices], ensure_ascii=False
        ),
        Key.FINISH_REASONS.value: [str(choice.get("finish_reason")) for choice in choices],
    }
    numbers = {
        Key.INPUT_TOKENS.value: _number(usage.get("prompt_tokens", _length(prompt_ids))),
        Key.OUTPUT_TOKENS.value: _number(usage.get("completion_tokens", _length(token_ids))),
    }
    sequences = {
        Key.PROMPT_TOKEN_IDS.value: prompt_ids,
        Key.RESPONSE_TOKEN_IDS.value: token_ids,
        Key.RESPONSE_LOGPROBS.value: _logprobs(first.get("logprobs")),
    }
    return {
        **attributes,
        **numbers,
        **{key: value for key, value in sequences.items() if value},
        Key.MODEL_VERSION.value: _version(first.get("weight_versions"), answer),
    }


def _ids(value: Any) -> list[int] | None:
    if not value:
        return None
    if not isinstance(value, list) or any(type(token_id) is not int for token_id in value):
        raise ValueError(f"expected a list of token ids, got {str(value)[:80]}")
    return value


def _logprobs(logprobs: Any) -> list[float] | None:
    content = (logprobs or {}).get("content")
    return [float(token["logprob"]) for token in content] if content else None


def _version(weight_versions: Any, answer: Mapping[str, Any]) -> str | None:
    # An answer that spans a weight update is put down to the weights that ended it.
    version = weight_versions[-1]["version"] if weight_versions else answer.get("model_version")
    return None if version is None else str(version)


def _json(value: Any) -> str | None:
    return json.dumps(value, ensure_ascii=False) if value else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) else None


def _length(value: Any) -> int | None:
    return len(value) if value else None
