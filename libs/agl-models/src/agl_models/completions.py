"""Chat completions as a server of a model speaks them: requests, prompts, answers, refusals.

For servers of plugins behind a gateway; the fields of a ``ChatRequest`` say what each can do.
Answers are OpenAI's, with vLLM's additions: ``prompt_token_ids`` at the top (in a stream: in the
first chunk of each choice), ``choices[].token_ids``, ``choices[].logprobs.content[]`` and
``choices[].weight_versions``. ``model_version`` at the top says the same as the last of these.
"""

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agl.utils.json_values import parse_json
from agl.utils.text import shorten
from agl_http.layers import EVENTS, JSON

END_OF_STREAM = b"data: [DONE]\n\n"
ROLES = {role: role for role in ("system", "user", "assistant", "tool")} | {"developer": "system"}
"""Role of a message -> what chat templates call it: many leave out silently what is unknown."""


class RequestError(Exception):
    """A request that is refused.

    Args:
        status: HTTP status.
        message: What came and what was expected, for a person.
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

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False


class ChatRequest(BaseModel):
    """The fields that every server takes. What one cannot do is refused, not left out silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
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
    tool_choice: Literal["none", "auto"] | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Passed to the tokenizer's chat template."""

    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    """These three change nothing about an answer."""

    @property
    def token_limit(self) -> int | None:
        """The newer name wins."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """The texts of ``stop`` that are not empty."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(text for text in stop if text)

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class TextRequest(ChatRequest):
    """A request to a server that samples text and finds no calls of tools in it."""

    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    frequency_penalty: Literal[0] | None = None
    presence_penalty: Literal[0] | None = None
    tools: list[Any] | None = Field(default=None, max_length=0)


Request = TypeVar("Request", bound=ChatRequest)


def parse_request(
    kind: type[Request], body: bytes, server: str, explained: Mapping[str, str] | None = None
) -> Request:
    """Read a request to ``server``; ``explained`` is field -> what to say when it is wrong.

    Raises:
        RequestError: It is not JSON, or has a field that is unknown, wrong or not supported.
    """
    try:
        return kind.model_validate_json(body or b"{}")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"]) or "the body"
        if first["type"] == "json_invalid":
            why = first["msg"].removeprefix("Invalid JSON: ")
            message = f"the request body is not valid JSON: {why}"
            message += " (half of a surrogate pair?)" if "hex escape" in why else ""
        elif first["type"] == "extra_forbidden":
            message = f"{name!r}: {server} has no such option; leave it out"
        elif explained and name in explained:
            message = f"{name!r}: {explained[name]}"
        else:
            message = f"{name!r}: {first['msg']}; got {shorten(repr(first['input']))}"
        raise RequestError(400, message) from None


def render_prompt(
    tokenizer: Any, request: ChatRequest, tools: list[Any] | None = None, **options: Any
) -> list[int]:
    """Token ids of a request's messages, as the model's chat template has them.

    Args:
        tokenizer: One of ``transformers``, with a chat template.
        request: Its ``chat_template_kwargs`` win over ``options``.
        tools: Definitions that the template shall show.

    Raises:
        RequestError: ``template_messages`` or the template refuses the messages, or there are no
            tokens of them; or it brings a template of its own.
    """
    if "chat_template" in request.chat_template_kwargs:
        # It is a program, and would run among the answers to others for as long as it likes.
        raise RequestError(
            400, "'chat_template_kwargs.chat_template': this server takes the model's own alone"
        )
    messages = template_messages(request.messages)
    try:
        token_ids = list(
            tokenizer.apply_chat_template(
                messages,
                tools=tools,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
                **{**options, **request.chat_template_kwargs},
            )
        )
    except Exception as error:
        # Templates are programs: whatever one refuses is the request's fault.
        raise RequestError(
            400, f"'messages': the model's chat template or tokenizer refused them: {error}"
        ) from error
    if not all(isinstance(one, int) for one in token_ids):
        raise RequestError(
            400,
            "'chat_template_kwargs': they have the template make something else than a list of "
            "token ids; leave out what says how tokens are returned",
        )
    if not token_ids:
        raise RequestError(
            400, "'messages': the model's chat template makes no tokens of them; expected some text"
        )
    return token_ids


def end_tokens(*sources: Any) -> frozenset[int]:
    """What tokenizers, generation configurations and model configurations have as end tokens."""
    ids: set[int] = set()
    for source in sources:
        found: Any = getattr(source, "eos_token_id", None)
        each = cast("list[Any]", found if isinstance(found, list | tuple) else [found])
        ids.update(one for one in each if one is not None)
    return frozenset(ids)


def room_for_answer(request: ChatRequest, prompt_tokens: int, max_model_tokens: int) -> int:
    """How many tokens the answer may have: what was asked for, or all that is left.

    Raises:
        RequestError: That much is not left.
    """
    room, asked = max_model_tokens - prompt_tokens, request.token_limit
    if room < (asked or 1):
        raise RequestError(
            400,
            f"the model takes {max_model_tokens} tokens; the messages have {prompt_tokens} and "
            f"{asked or 1} were asked for. Shorten the messages or lower max_tokens",
            "context_length_exceeded",
        )
    return asked or room


def template_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as chat templates take them: content as one text, arguments of tools as objects.

    Raises:
        RequestError: A message has an unknown role, no content, or a part that is not text.
    """
    flat: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        if (role := str(message.get("role"))) not in ROLES:
            raise _refused(message, index, "role", f"expected one of {', '.join(ROLES)}")
        copy = {**message, "role": ROLES[role], "content": _text(message, index)}
        if calls := copy.pop("tool_calls", None):
            try:
                copy["tool_calls"] = [_with_object(call) for call in cast("list[Any]", calls)]
            except (KeyError, TypeError, ValueError):
                what = "expected a list of objects, each with an object 'function'"
                raise _refused(message, index, "tool_calls", what) from None
        flat.append(copy)
    return flat


def _refused(message: dict[str, Any], index: int, name: str, expected: str) -> RequestError:
    got = shorten(repr(message[name])) if name in message else "nothing"
    return RequestError(400, f"'messages.{index}.{name}': {expected}; got {got}")


def _text(message: dict[str, Any], index: int) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None and message["role"] == "assistant" and message.get("tool_calls"):
        return ""
    if not isinstance(content, list):
        raise _refused(message, index, "content", "expected text, or a list of parts that are text")
    parts: list[str] = []
    for part in cast("list[Any]", content):
        fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
        if fields.get("type") != "text":
            why = (
                f"parts of type {fields.get('type', part)!r} are not supported: the model that is "
                "trained gets text alone. Send them to another model of the gateway"
            )
            raise RequestError(400, f"'messages.{index}.content': {why}")
        if not isinstance(text := fields.get("text"), str):
            raise _refused(message, index, "content", "expected a string as 'text' of each part")
        parts.append(text)
    return "".join(parts)


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    """Templates print arguments as they find them; OpenAI sends JSON in a string."""
    function = dict(call["function"])
    with contextlib.suppress(KeyError, TypeError, ValueError):
        function["arguments"] = parse_json(function["arguments"])
    return {**call, "function": function}


@dataclass
class Piece:
    """A stretch of one choice: all of it, or what a chunk brings."""

    index: int
    text: str = ""
    _: KW_ONLY
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    token_texts: list[str] | None = None
    """One per token; only needed with ``logprobs``."""
    finish_reason: str | None = None
    stop_reason: str | None = None
    version: str | None = None
    num_tokens: int = 0
    """How many tokens the whole choice has, once it has ended."""
    tool_calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


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
        now = int(time.time())
        self._head: dict[str, Any] = {"id": answer_id, "created": now, "model": request.model}

    def whole(self, pieces: list[Piece]) -> bytes:
        """The answer, unstreamed."""
        choices = [{**self._common(piece), "message": _message(piece)} for piece in pieces]
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
        delta: dict[str, Any] = {"content": piece.text}
        if piece.tool_calls:
            delta["tool_calls"] = [
                {"index": number, **call} for number, call in enumerate(piece.tool_calls)
            ]
        choice = {**self._common(piece), "delta": delta}
        head = {"model_version": piece.version} if piece.version is not None else {}
        return self._event({**head, "choices": [choice]})

    def usage_chunk(self, pieces: list[Piece]) -> bytes:
        """The chunk that a request with ``include_usage`` ends with."""
        return self._event({"choices": [], "usage": self._usage(pieces)})

    def answer(self, pieces: list[Piece]) -> tuple[bytes, bytes]:
        """An answer that is there, and its media type; in a stream each choice is one chunk."""
        if not self._request.stream:
            return self.whole(pieces), JSON
        events = [
            event
            for piece in pieces
            for event in (self.first_chunk(piece.index), self.chunk(piece))
        ]
        if self._request.wants_usage:
            events.append(self.usage_chunk(pieces))
        return b"".join([*events, END_OF_STREAM]), EVENTS

    def _event(self, chunk: dict[str, Any]) -> bytes:
        body = dumps({**self._head, "object": "chat.completion.chunk", **chunk})
        return b"data: " + body + b"\n\n"

    def _prompt(self) -> dict[str, Any]:
        if not self._request.return_token_ids:
            return {}
        return {"prompt_token_ids": self._prompt_token_ids}

    def _common(self, piece: Piece) -> dict[str, Any]:
        end = {"finish_reason": piece.finish_reason, "stop_reason": piece.stop_reason}
        common: dict[str, Any] = {"index": piece.index, "logprobs": None, **end}
        if self._request.logprobs and piece.token_texts is not None:
            common["logprobs"] = {
                "content": [
                    {"token": text, "logprob": p, "bytes": [*text.encode()], "top_logprobs": []}
                    for text, p in zip(piece.token_texts, piece.logprobs or [], strict=True)
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


def _message(piece: Piece) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": piece.text, "refusal": None}
    if piece.tool_calls:
        message = {**message, "content": piece.text or None, "tool_calls": piece.tool_calls}
    return message


def dumps(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
