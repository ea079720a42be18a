"""What the readers share: the parts of a call that every way of writing has in its own place."""

import json
from array import array
from collections.abc import Mapping
from typing import Any

from agl.semconv import ModelCallAttributes as Key
from agl.types import ModelCall, Span

CALLS = ("chat", "text_completion", "generate_content")
"""Values of ``gen_ai.operation.name`` that are model calls; agents and tools are others."""

ERROR_MESSAGES = ("error.message", "exception.message", "error.type")
"""Where instruments write what went wrong, beside the status."""
HINTS = ("gen_ai.usage.", "gen_ai.response.", "gen_ai.request.", "llm.", "prompt_token_ids")
"""Keys, or beginnings of them, that only model calls (or parts of one) have."""


class MessageError(ValueError):
    """A message that cannot be read."""


def checked_role(message: Mapping[str, Any]) -> str:
    """The role of a message.

    Raises:
        MessageError: It has none.
    """
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise MessageError(f"expected a message with a role, got the keys {sorted(message)}")
    return role


def looks_like_call(span: Span) -> bool:
    """Whether a span that no reader knows has what only model calls have."""
    if span.attributes.get(Key.OPERATION, CALLS[0]) not in CALLS:
        return False
    kind = str(span.attributes.get("openinference.span.kind", "LLM"))
    return kind == "LLM" and any(key.startswith(HINTS) for key in span.attributes)


def is_structured(span: Span) -> bool:
    """Whether a span says that the answer is an object of a given form."""
    attributes = span.attributes
    return (
        attributes.get("gen_ai.output.type") == "json"
        or "response_format" in str(attributes.get("llm.invocation_parameters", ""))
        or any(
            "response_format" in key or "structured_output" in key or key.endswith(".parsed")
            for key in attributes
        )
    )


def make_call(span: Span, **fields: Any) -> ModelCall:
    """A call recorded by ``span``; ``fields`` are what the reader found."""
    error = span.attributes.get(Key.ERROR)
    if error is None and span.status.status_code == "ERROR":
        said = (span.attributes.get(key) for key in ERROR_MESSAGES)
        error = span.status.description or next(filter(None, said), "the span has status ERROR")
    return ModelCall(
        call_id=span.span_id,
        rollout_id=span.rollout_id,
        attempt_id=span.attempt_id,
        sequence_id=span.sequence_id,
        start_time=span.start_time,
        end_time=span.end_time,
        error=None if error is None else str(error),
        **fields,
    )


def response_fields(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Model, answer id and reason to finish, under OpenTelemetry's keys."""
    reasons = attributes.get(Key.FINISH_REASONS)
    if isinstance(reasons, str) and reasons.startswith("["):
        reasons = json.loads(reasons)
    return {
        "model": text(attributes.get(Key.RESPONSE_MODEL) or attributes.get(Key.REQUEST_MODEL)),
        "model_version": text(attributes.get(Key.MODEL_VERSION)),
        "agent_name": text(attributes.get(Key.AGENT_NAME)),
        "response_id": text(attributes.get(Key.RESPONSE_ID)),
        "finish_reason": _finish(reasons[0]) if reasons and not isinstance(reasons, str) else None,
    }


def token_fields(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Token ids and log-probabilities, under 0.3's keys and ours."""
    logprobs = attributes.get(Key.RESPONSE_LOGPROBS)
    if logprobs is None and isinstance(attributes.get("logprobs.content"), str):
        logprobs = token_logprobs(json.loads(attributes["logprobs.content"]))
    return {
        "prompt_token_ids": token_ids(attributes.get(Key.PROMPT_TOKEN_IDS)),
        "response_token_ids": token_ids(attributes.get(Key.RESPONSE_TOKEN_IDS)),
        "response_logprobs": _numbers(logprobs) if logprobs else None,
    }


def completion_fields(output: Mapping[str, Any]) -> dict[str, Any]:
    """What a chat completion has beside its message; token ids as vLLM and SGLang give them."""
    first = output["choices"][0]
    extra = first.get("provider_specific_fields") or {}
    all_ids = output.get("response_token_ids")
    return {
        "prompt_token_ids": token_ids(output.get("prompt_token_ids")),
        "response_token_ids": token_ids(
            all_ids[0] if all_ids else first.get("token_ids") or extra.get("token_ids")
        ),
        "response_logprobs": token_logprobs((first.get("logprobs") or {}).get("content")),
        "model": text(output.get("model")),
        "response_id": text(output.get("id")),
        "finish_reason": text(first.get("finish_reason")),
    }


def token_ids(value: Any) -> list[int] | None:
    """A list of ids, also out of JSON; None for nothing and for an empty list.

    Raises:
        ValueError: It is something else.
    """
    if isinstance(value, str):
        value = json.loads(value) if value else None
    if not value:
        return None
    try:
        # An array of unsigned integers is the quickest way to look at all of them.
        array("Q", value)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"expected a list of token ids, got {str(value)[:80]}") from error
    return value if isinstance(value, list) else list(value)


def _numbers(values: Any) -> list[float]:
    array("d", values)  # raises where one is no number
    return values if isinstance(values, list) else list(values)


def token_logprobs(content: Any) -> list[float] | None:
    """The log-probabilities in the ``logprobs.content`` of a chat completion."""
    return [float(token["logprob"]) for token in content] if content else None


def _finish(reason: Any) -> str:
    # OpenTelemetry's word for OpenAI's.
    return "tool_calls" if reason == "tool_call" else str(reason)


def text(value: Any) -> str | None:
    """A string, or None for anything else."""
    return value if isinstance(value, str) and value else None
