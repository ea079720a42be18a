"""Spans written by hand, for tests of what reads them."""

import json
from dataclasses import dataclass, field
from typing import Any

from agl.emitter import reward_attributes
from agl.semconv import AGL_ANNOTATION, MODEL_CALL_SPAN, ModelCallAttributes as Key
from agl.types import Span


@dataclass(eq=False)
class Trace:
    """Spans of one attempt: numbers and ids count up, and each begins a second after the other."""

    attempt_id: str = "at-1"
    """Of all spans."""
    start: float = 100.0
    """A second before the first one begins."""
    spans: list[Span] = field(default_factory=list[Span])

    def span(self, name: str, attributes: dict[str, Any] | None = None, **fields: Any) -> Span:
        """Add a span; ``fields`` are those in which it differs."""
        number = len(self.spans) + 1
        given: dict[str, Any] = {
            "rollout_id": "ro-1",
            "attempt_id": self.attempt_id,
            "sequence_id": number,
            "span_id": f"{number:016x}",
            "start_time": self.start + number,
            "end_time": self.start + number + 0.5,
        }
        late = fields.pop("late", False)
        span = Span.from_attributes(name=name, attributes=attributes or {}, **{**given, **fields})
        span = span.changed(late=late)
        self.spans.append(span)
        return span

    def gateway(
        self,
        prompt: list[int] | None = None,
        response: list[int] | None = None,
        *,
        response_id: str | None = None,
        agent: str | None = None,
        logprobs: list[float] | None = None,
        error: str | None = None,
        messages: list[dict[str, Any]] | None = None,
        **fields: Any,
    ) -> Span:
        """A call as agl-gateway records it."""
        attributes = {
            Key.OPERATION: "chat",
            Key.REQUEST_MODEL: "echo",
            Key.INPUT_MESSAGES: json.dumps(messages or [{"role": "user", "content": "hi"}]),
            Key.OUTPUT_MESSAGES: None if error else '[{"role": "assistant", "content": "yes"}]',
            Key.RESPONSE_ID: response_id,
            Key.AGENT_NAME: agent,
            Key.PROMPT_TOKEN_IDS: prompt,
            Key.RESPONSE_TOKEN_IDS: response,
            Key.RESPONSE_LOGPROBS: (
                [-0.5] * len(response or []) if logprobs is None else logprobs or None
            ),
            Key.ERROR: error,
        }
        kept = {key.value: value for key, value in attributes.items() if value}
        return self.span(MODEL_CALL_SPAN, kept, **fields)

    def flat(
        self, response_id: str | None = None, *, extra: dict[str, Any] | None = None, **fields: Any
    ) -> Span:
        """A call as AgentOps records it."""
        attributes = {
            "gen_ai.system": "OpenAI",
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": "hi",
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.content": "yes",
            "gen_ai.completion.0.finish_reason": "stop",
            "gen_ai.request.model": "echo",
            **({"gen_ai.response.id": response_id} if response_id else {}),
            **(extra or {}),
        }
        return self.span("openai.chat.completion", attributes, **fields)

    def reward(self, value: float, **fields: Any) -> Span:
        """A reward, as ``agl.emit_reward`` writes it."""
        return self.span(AGL_ANNOTATION, reward_attributes(value), **fields)
