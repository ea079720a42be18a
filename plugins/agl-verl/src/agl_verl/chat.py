"""The wire of the token backend: chat completions with token ids, as vLLM's servers speak them.

The gateway stands between this and agents, so only its dialect is needed: requests as OpenAI has
them, answers with ``prompt_token_ids``, ``choices[].token_ids``, log-probabilities and
``choices[].weight_versions``.
"""

import contextlib
import json
import time
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class RequestError(Exception):
    """A request that is refused.

    Args:
        status: HTTP status.
        message: For a person: what came, what was expected.
        code: OpenAI's code, if it has one.
    """

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def body(self) -> bytes:
        """OpenAI's error shape."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return dumps(
            {"error": {"message": str(self), "type": kind, "param": None, "code": self.code}}
        )


class ChatRequest(BaseModel):
    """A chat completion request; what cannot be honoured is refused by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = None
    repetition_penalty: float | None = Field(default=None, gt=0)
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    min_tokens: int | None = Field(default=None, ge=0)
    n: int = Field(default=1, ge=1, le=256)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: str | list[str] | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    logprobs: bool = False
    top_logprobs: Literal[0] | None = None
    return_token_ids: bool = False
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: Literal[True] | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict[str, Any])

    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    """These three change nothing about an answer."""

    @property
    def stop_texts(self) -> list[str]:
        """As a list, empty texts left out."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [text for text in given if text]

    def sampling(self, defaults: dict[str, Any], max_tokens: int) -> dict[str, Any]:
        """Sampling parameters as verl's servers take them."""
        names = (
            *("temperature", "top_p", "top_k", "repetition_penalty", "frequency_penalty"),
            *("presence_penalty", "min_tokens", "seed", "ignore_eos"),
        )
        given = {name: getattr(self, name) for name in names}
        return {
            **defaults,
            **{name: value for name, value in given.items() if value is not None},
            "max_tokens": max_tokens,
            "logprobs": True,
        }


def parse(body: bytes) -> ChatRequest:
    """Read a request.

    Raises:
        RequestError: It is not JSON, or has a field that is unknown, wrong or not supported.
    """
    try:
        return ChatRequest.model_validate(json.loads(body) if body else {})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"]) or "the body"
        if first["type"] == "extra_forbidden":
            raise RequestError(400, f"{name!r}: training with verl has no such option") from None
        shown = repr(first["input"])[:80]
        raise RequestError(400, f"{name!r}: {first['msg']}; got {shown}") from None
    except ValueError as error:
        raise RequestError(400, f"the request body is not valid JSON: {error}") from None


def template_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as chat templates take them: text content as one string, arguments as objects.

    Raises:
        RequestError: A part of a message is not text.
    """
    flat: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list):
            texts: list[str] = []
            for part in content:
                if not isinstance(part, dict) or part.get("type") != "text":
                    kind = part.get("type") if isinstance(part, dict) else part
                    raise RequestError(
                        400, f"'messages.{index}.content': parts of type {kind!r} are not supported"
                    )
                texts.append(str(part.get("text", "")))
            content = "".join(texts)
        copy = {**message, "content": "" if content is None else content}
        if copy.get("tool_calls"):
            copy["tool_calls"] = [_with_object(call) for call in copy["tool_calls"]]
        else:
            copy.pop("tool_calls", None)
        flat.append(copy)
    return flat


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    """Templates print arguments as they find them; OpenAI sends JSON in a string."""
    function = dict(call.get("function") or {})
    with contextlib.suppress(KeyError, TypeError, ValueError):
        function["arguments"] = json.loads(function["arguments"])
    return {**call, "function": function}


@dataclass
class Choice:
    """One sampled answer."""

    text: str
    token_ids: list[int]
    logprobs: list[float]
    token_texts: list[str]
    finish_reason: str
    version: str
    tool_calls: list[dict[str, Any]]


def answer(
    request: ChatRequest, answer_id: str, prompt_ids: list[int], choices: list[Choice]
) -> dict[str, Any]:
    """The whole answer."""
    body = _head(request, answer_id, "chat.completion")
    if request.return_token_ids:
        body["prompt_token_ids"] = prompt_ids
    body["choices"] = []
    for index, choice in enumerate(choices):
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.tool_calls:
            message["tool_calls"] = choice.tool_calls
            message["content"] = choice.text or None
        body["choices"].append({**_common(request, index, choice), "message": message})
    body["usage"] = _usage(prompt_ids, choices)
    return body


def chunks(
    request: ChatRequest, answer_id: str, prompt_ids: list[int], choices: list[Choice]
) -> list[dict[str, Any]]:
    """The same as a stream: for each choice its text in one piece, then usage if asked for."""
    head = _head(request, answer_id, "chat.completion.chunk")
    prompt = {"prompt_token_ids": prompt_ids} if request.return_token_ids else {}
    events: list[dict[str, Any]] = []
    for index, choice in enumerate(choices):
        opening = {"index": index, "delta": {"role": "assistant", "content": ""}}
        events.append({**head, **prompt, "choices": [{**opening, "finish_reason": None}]})
        delta: dict[str, Any] = {"content": choice.text}
        if choice.tool_calls:
            delta["tool_calls"] = [
                {"index": number, **call} for number, call in enumerate(choice.tool_calls)
            ]
        events.append({**head, "choices": [{**_common(request, index, choice), "delta": delta}]})
    if (request.stream_options or {}).get("include_usage"):
        events.append({**head, "choices": [], "usage": _usage(prompt_ids, choices)})
    return events


def _head(request: ChatRequest, answer_id: str, kind: str) -> dict[str, Any]:
    return {
        "id": answer_id,
        "object": kind,
        "created": int(time.time()),
        "model": request.model,
    }


def _common(request: ChatRequest, index: int, choice: Choice) -> dict[str, Any]:
    common: dict[str, Any] = {
        "index": index,
        "finish_reason": choice.finish_reason,
        "logprobs": None,
        "weight_versions": [{"version": choice.version, "start": 0, "end": len(choice.token_ids)}],
    }
    if request.logprobs:
        common["logprobs"] = {
            "content": [
                {"token": text, "logprob": logprob, "bytes": None, "top_logprobs": []}
                for text, logprob in zip(choice.token_texts, choice.logprobs, strict=True)
            ]
        }
    if request.return_token_ids:
        common["token_ids"] = choice.token_ids
    return common


def _usage(prompt_ids: list[int], choices: list[Choice]) -> dict[str, int]:
    sampled = sum(len(choice.token_ids) for choice in choices)
    return {
        "prompt_tokens": len(prompt_ids),
        "completion_tokens": sampled,
        "total_tokens": len(prompt_ids) + sampled,
    }


def dumps(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
