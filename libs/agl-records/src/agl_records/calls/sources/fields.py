# pyright: standard
"""What the readers share: the parts of a call that every way of writing has in its own place."""

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from agl.semconv import ModelCallAttributes as Key
from agl.types import Span
from agl.utils.json_values import parse_json
from agl.utils.otel import attributes_under, from_attributes
from agl_records.dialects.chat import finish_reason
from agl_records.training_data import Choice, ModelCall

T = TypeVar("T")

OUTPUT_TYPE = "gen_ai.output.type"
_ERROR_MESSAGES = ("error.message", "exception.message", "error.type")
"""Where instruments write what went wrong, beside the status."""


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


def chat_message(
    message: Mapping[str, Any], content: Any, calls: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """A message in OpenAI's form: the role and the names of ``message``, and what was read of it.

    Raises:
        MessageError: It has no role.
    """
    chat: dict[str, Any] = {"role": checked_role(message), "content": content}
    chat |= {key: message[key] for key in ("name", "tool_call_id") if message.get(key)}
    return {**chat, "tool_calls": calls} if calls else chat


def numbered(attributes: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """What stands under ``<prefix>.N.*``, in order."""
    found = attributes_under(attributes, prefix)
    items = from_attributes({key: value for key, value in found.items() if key})
    # Azure's answers have more than messages here: ``gen_ai.prompt.prompt_filter_results``.
    return [items[index] for index in sorted(filter(str.isdecimal, items), key=int)]


OF_ANSWER = (
    "response",
    "response_token_ids",
    "response_logprobs",
    "finish_reason",
    "contradiction",
)
"""What a call has of its answer."""


def make_call(span: Span, **fields: Any) -> ModelCall:
    """A call recorded by ``span``; ``fields`` are what the reader found.

    Of several ``choices`` none is the answer until it is known which one was used.

    Raises:
        MessageError: Calls of tools in a message are none.
    """
    choices: Sequence[Choice] = fields.pop("choices", ())
    answers = [fields.get("response"), *[choice.response for choice in choices]]
    for message in (*fields.get("messages", ()), *filter(None, answers)):
        called = message.get("tool_calls") or []
        if not isinstance(called, list) or not all(
            isinstance(one, dict) and isinstance(one.get("function") or {}, dict) for one in called
        ):
            got = str(called)[:80]
            raise MessageError(f"expected tool_calls as a list of objects, got {got}")
    fields["finish_reason"] = finish_reason(fields.get("finish_reason"))
    fields["is_constrained"] = span.attributes.get(OUTPUT_TYPE) == "json"
    if len(choices) > 1:
        fields |= dict.fromkeys(OF_ANSWER)
        fields["choices"] = [
            choice.model_copy(update={"finish_reason": finish_reason(choice.finish_reason)})
            for choice in choices
        ]
    attributes = span.attributes
    error = attributes.get(Key.ERROR)
    kind: Any = attributes.get(Key.ERROR_KIND)
    if error is None and span.status.status_code == "ERROR":
        said = (attributes.get(key) for key in _ERROR_MESSAGES)
        error = span.status.description or next(filter(None, said), "the span has status ERROR")
    return ModelCall(
        call_id=span.span_id,
        rollout_id=span.rollout_id,
        attempt_id=span.attempt_id,
        sequence_id=span.sequence_id,
        start_time=span.start_time,
        end_time=span.end_time,
        error=None if error is None else str(error),
        error_kind=kind if error and kind in ("infrastructure", "request") else None,
        **fields,
    )


def listed_choices(
    attributes: Mapping[str, Any], answers: Sequence[dict[str, Any] | None]
) -> list[Choice]:
    """The choices of a call whose answers are listed; empty where those are parts of one answer.

    Each choice has its reason to finish, the second and later ones their tokens under
    ``agentlightning.choice.N``, the first those of the call.
    """
    reasons = _reasons(attributes) if len(answers) > 1 else []
    if len(reasons) != len(answers) or len(answers) < 2:
        return []
    first = token_fields(attributes)
    choices = [
        Choice(
            response=answers[0],
            token_ids=first["response_token_ids"],
            logprobs=first["response_logprobs"],
            finish_reason=reasons[0],
            version_spans=version_spans(attributes.get(Key.VERSION_SPANS)),
            contradiction=text(attributes.get(Key.CONTRADICTION)),
        )
    ]
    for number in range(1, len(answers)):
        prefix = f"{Key.CHOICE.value}.{number}"
        choices.append(
            Choice(
                response=answers[number],
                token_ids=readable(token_ids, attributes.get(f"{prefix}.token_ids")),
                logprobs=readable(_numbers, attributes.get(f"{prefix}.logprobs")),
                finish_reason=reasons[number],
                model_version=text(attributes.get(f"{prefix}.model_version")),
                version_spans=version_spans(attributes.get(f"{prefix}.model_version_spans")),
                contradiction=text(attributes.get(f"{prefix}.contradiction")),
            )
        )
    return choices


def _reasons(attributes: Mapping[str, Any]) -> list[str | None]:
    reasons: Any = attributes.get(Key.FINISH_REASONS)
    if isinstance(reasons, str) and reasons.startswith("["):
        reasons = readable(parse_json, reasons)
    if not reasons or isinstance(reasons, str):
        return []
    return [None if one is None else str(one) for one in reasons]


def response_fields(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Model, answer id and reason to finish, under OpenTelemetry's keys."""
    reasons = _reasons(attributes)
    return {
        "model": text(attributes.get(Key.RESPONSE_MODEL) or attributes.get(Key.REQUEST_MODEL)),
        "requested_model": text(attributes.get(Key.REQUEST_MODEL)),
        "model_version": text(attributes.get(Key.MODEL_VERSION)),
        "version_spans": version_spans(attributes.get(Key.VERSION_SPANS)),
        "input_tokens": count(attributes.get(Key.INPUT_TOKENS)),
        "output_tokens": count(attributes.get(Key.OUTPUT_TOKENS)),
        "contradiction": text(attributes.get(Key.CONTRADICTION)),
        "agent_name": text(attributes.get(Key.AGENT_NAME)),
        "response_id": text(attributes.get(Key.RESPONSE_ID)),
        "finish_reason": reasons[0] if reasons else None,
    }


def token_fields(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Token ids and log-probabilities, under 0.3's keys and ours."""
    told: Any = attributes.get(Key.UNREADABLE)
    unreadable = [str(one) for one in told] if isinstance(told, list | tuple) else []
    logprobs = attributes.get(Key.RESPONSE_LOGPROBS)
    if logprobs is None and isinstance(attributes.get("logprobs.content"), str):
        content = readable(parse_json, attributes["logprobs.content"], unreadable)
        logprobs = readable(token_logprobs, content, unreadable)
    prompt, response = (attributes.get(k) for k in (Key.PROMPT_TOKEN_IDS, Key.RESPONSE_TOKEN_IDS))
    return {
        "prompt_token_ids": readable(token_ids, prompt, unreadable),
        "response_token_ids": readable(token_ids, response, unreadable),
        "response_logprobs": readable(_numbers, logprobs, unreadable),
        "unreadable": unreadable,
    }


def completion_fields(output: Mapping[str, Any]) -> dict[str, Any]:
    """What a chat completion has beside its message; token ids as vLLM and SGLang give them."""
    all_ids = output.get("response_token_ids") or []
    unreadable: list[str] = []
    choices = [
        _choice(choice, all_ids[number] if number < len(all_ids) else None, unreadable)
        for number, choice in enumerate(output["choices"])
    ]
    first = choices[0]
    usage = used if isinstance(used := output.get("usage"), dict) else {}
    return {
        "unreadable": unreadable,
        "input_tokens": count(usage.get("prompt_tokens")),
        "output_tokens": count(usage.get("completion_tokens")),
        "prompt_token_ids": readable(token_ids, output.get("prompt_token_ids"), unreadable),
        "response_token_ids": first.token_ids,
        "response_logprobs": first.logprobs,
        "model": text(output.get("model")),
        "response_id": text(output.get("id")),
        "finish_reason": first.finish_reason,
        "choices": choices,
    }


def _choice(choice: Mapping[str, Any], ids: Any, unreadable: list[str]) -> Choice:
    extra = choice.get("provider_specific_fields") or {}
    message = choice.get("message") or {}
    places = (ids, choice.get("token_ids"), extra.get("token_ids"))
    given = next((one for one in places if one is not None), None)
    content = (choice.get("logprobs") or {}).get("content")
    return Choice(
        response=dict(message) or None,
        token_ids=readable(token_ids, given, unreadable),
        logprobs=readable(token_logprobs, content, unreadable),
        finish_reason=text(choice.get("finish_reason")),
    )


def token_ids(value: Any) -> list[int] | None:
    """A list of ids, also out of JSON; None for nothing.

    Raises:
        ValueError: It is something else.
    """
    if (value := from_json_text(value)) is None:
        return None
    try:
        # An array of unsigned integers of 32 bits is the quickest way to look at all of them.
        array("I", value)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"expected a list of token ids, got {str(value)[:80]}") from error
    return value if isinstance(value, list) else list(value)


def _numbers(values: Any) -> list[float] | None:
    if not values:
        return None
    math.hypot(*values)  # raises where one is no number, and is the quickest that does
    return values if isinstance(values, list) else list(values)


def token_logprobs(content: Any) -> list[float] | None:
    """The log-probabilities in the ``logprobs.content`` of a chat completion."""
    return [float(token["logprob"]) for token in content] if content else None


def readable(
    read: Callable[[Any], T | None], value: Any, unreadable: list[str] | None = None
) -> T | None:
    """What a reader makes of a value; None, and the reason is listed, where it raises."""
    try:
        return read(value)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        if unreadable is not None:
            unreadable.append(f"{read.__name__.strip('_')}: {error}")
        return None


def from_json_text(value: Any) -> Any:
    """What a text of JSON says, None for an empty one; a value that is no text as it is.

    Raises:
        ValueError: The text is no JSON.
    """
    return (parse_json(value) if value else None) if isinstance(value, str) else value


def decoded(value: Any) -> Any:
    """What JSON says, where a text is an object or a list of objects; else the value."""
    if not isinstance(value, str) or not value.startswith(("{", "[{", "[]")):
        return value
    try:
        return parse_json(value)
    except ValueError:
        return value  # a text that begins like JSON


def count(value: Any) -> int | None:
    """A number of tokens, or None for anything else."""
    return value if type(value) is int and value > 0 else None


def version_spans(value: Any) -> list[tuple[str, int]] | None:
    """Versions of weights, each with how many tokens it sampled, out of JSON; else None."""
    try:
        return [(str(version), int(number)) for version, number in parse_json(value)]
    except (ValueError, TypeError):
        return None


def text(value: Any) -> str | None:
    """A string, or None for anything else."""
    return value if isinstance(value, str) and value else None
