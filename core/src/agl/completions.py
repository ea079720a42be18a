"""The wire: what a chat completion request may hold, and how answers, chunks and errors look.

Answers are OpenAI's, with vLLM's additions: ``prompt_token_ids`` at the top (in a stream: in the
first chunk of each choice), ``choices[].token_ids``, ``choices[].logprobs.content[]`` and
``choices[].weight_versions``. ``model_version`` at the top says the same as the last of these.
"""

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
        error = {"message": str(self), "type": kind, "param": None, "code": self.code}
        return dumps({"error": error})


class StreamOptions(BaseModel):
    """How a stream ends."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool = False


class ChatRequest(BaseModel):
    """A chat completion request. What the server cannot do is refused, not left out silently."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    n: int = Field(default=1, ge=1, le=256)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: str | list[str] | None = None
    seed: int | None = None
    logprobs: bool = False
    top_logprobs: Literal[0] | None = None
    return_token_ids: bool = False
    return_weight_versions: bool = True
    stream: bool = False
    stream_options: StreamOptions | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Passed to the tokenizer's chat template."""

    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    """These three change nothing about an answer."""

    frequency_penalty: Literal[0] | None = None
    presence_penalty: Literal[0] | None = None
    tools: list[Any] | None = Field(default=None, max_length=0)
    tool_choice: Literal["none", "auto"] | None = None
    """There is no parser that would find tool calls in the text, so tools are refused."""

    @property
    def token_limit(self) -> int | None:
        """The newer name wins."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """As a tuple, empty texts left out."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(text for text in stop if text)


def parse_request(body: bytes) -> ChatRequest:
    """Read a request.

    Raises:
        RequestError: It is not JSON, or has a field that is unknown, wrong or not supported.
    """
    try:
        return ChatRequest.model_validate(json.loads(body) if body else {})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the body"
        if first["type"] == "extra_forbidden":
            message = f"{field!r}: agl-torch's server has no such option; leave it out"
        elif field == "tools":
            message = (
                "'tools': agl-torch's server does not parse tool calls; describe the actions in "
                "the messages and read them from the text"
            )
        else:
            message = f"{field!r}: {first['msg']}; got {_shorten(first['input'])}"
        raise RequestError(400, message) from None
    except ValueError as error:
        raise RequestError(400, f"the request body is not valid JSON: {error}") from None


def template_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as chat templates take them: content as one text.

    Raises:
        RequestError: A part of a message is not text.
    """
    flat: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list):
            parts: list[str] = []
            for part in content:
                if not isinstance(part, dict) or part.get("type") != "text":
                    kind = part.get("type") if isinstance(part, dict) else part
                    raise RequestError(
                        400, f"'messages.{index}.content': parts of type {kind!r} are not supported"
                    )
                parts.append(str(part.get("text", "")))
            content = "".join(parts)
        flat.append({**message, "content": content if content is not None else ""})
    return flat


@dataclass
class Piece:
    """A stretch of one choice: all of it, or what a chunk brings."""

    index: int
    text: str = ""
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    token_texts: list[str] | None = None
    """One per token; only needed with ``logprobs``."""
    finish_reason: str | None = None
    stop_reason: str | None = None
    version: str | None = None
    num_tokens: int = 0
    """Of the whole choice, once it has ended."""


class AnswerWriter:
    """Writes the answer to one request, whole or in chunks.

    Args:
        request: What was asked for.
        answer_id: ``chatcmpl-...``.
        prompt_token_ids: What the model was given.
    """

    def __init__(self, request: ChatRequest, answer_id: str, prompt_token_ids: list[int]) -> None:
        self._request = request
        self._prompt_token_ids = prompt_token_ids
        self._head: dict[str, Any] = {
            "id": answer_id,
            "created": int(time.time()),
            "model": request.model,
        }

    def whole(self, pieces: list[Piece]) -> bytes:
        """The answer, unstreamed."""
        choices = [
            {
                **self._common(piece),
                "message": {"role": "assistant", "content": piece.text, "refusal": None},
            }
            for piece in pieces
        ]
        return dumps(
            {
                **self._head,
                "object": "chat.completion",
                "model_version": pieces[-1].version,
                **self._prompt(),
                "choices": choices,
                "usage": self._usage(pieces),
            }
        )

    def first_chunk(self, index: int) -> bytes:
        """The chunk that opens one choice."""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._event({**self._prompt(), "choices": [choice]})

    def chunk(self, piece: Piece) -> bytes:
        """A chunk with further tokens of one choice, or its end."""
        choice = {**self._common(piece), "delta": {"content": piece.text}}
        head = {"model_version": piece.version} if piece.version is not None else {}
        return self._event({**head, "choices": [choice]})

    def usage_chunk(self, pieces: list[Piece]) -> bytes:
        """The chunk that a request with ``include_usage`` ends with."""
        return self._event({"choices": [], "usage": self._usage(pieces)})

    def _event(self, chunk: dict[str, Any]) -> bytes:
        body = dumps({**self._head, "object": "chat.completion.chunk", **chunk})
        return b"data: " + body + b"\n\n"

    def _prompt(self) -> dict[str, Any]:
        if not self._request.return_token_ids:
            return {}
        return {"prompt_token_ids": self._prompt_token_ids}

    def _common(self, piece: Piece) -> dict[str, Any]:
        common: dict[str, Any] = {
            "index": piece.index,
            "logprobs": None,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
        }
        if self._request.logprobs and piece.token_texts is not None:
            common["logprobs"] = {
                "content": [
                    {
                        "token": text,
                        "logprob": logprob,
                        "bytes": list(text.encode()),
                        "top_logprobs": [],
                    }
                    for text, logprob in zip(piece.token_texts, piece.logprobs or [], strict=True)
                ]
            }
        if self._request.return_token_ids and piece.token_ids is not None:
            common["token_ids"] = piece.token_ids
        if self._request.return_weight_versions and piece.version is not None:
            common["weight_versions"] = [
                {"version": piece.version, "start": 0, "end": piece.num_tokens}
            ]
        return common

    def _usage(self, pieces: list[Piece]) -> dict[str, int]:
        prompt, answer = len(self._prompt_token_ids), sum(piece.num_tokens for piece in pieces)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
        }


def dumps(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _shorten(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
