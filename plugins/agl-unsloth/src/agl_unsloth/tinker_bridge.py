"""An OpenAI-compatible address in front of Tinker's sampling, for agents behind the gateway.

Answers are OpenAI's with vLLM's additions: ``prompt_token_ids``, ``choices[].token_ids`` and
``choices[].logprobs``, exactly as Tinker was given and gave them, and ``model_version``. Tinker
does not stream; a stream brings the whole answer in one chunk.
"""

import json
import logging
import secrets
import time
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agl.errors import AglError, ConfigError
from agl_unsloth.tinker_service import Sampled

logger = logging.getLogger("agl.unsloth.tinker")

MODEL_NAME = "policy"


class CanSample(Protocol):
    """What the bridge asks."""

    async def sample(
        self, prompt_token_ids: list[int], num_samples: int, parameters: dict[str, Any]
    ) -> list[Sampled]:
        """Answers to a prompt."""
        ...


class ChatRequest(BaseModel):
    """A chat completion request. What Tinker cannot do is refused, not left out silently."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = -1
    n: int = Field(default=1, ge=1, le=256)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: str | list[str] | None = None
    seed: int | None = None
    logprobs: bool = False
    top_logprobs: Literal[0] | None = None
    return_token_ids: bool = False
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    frequency_penalty: Literal[0] | None = None
    presence_penalty: Literal[0] | None = None
    tools: list[Any] | None = Field(default=None, max_length=0)
    tool_choice: Literal["none", "auto"] | None = None
    """There is no parser that would find tool calls in the text, so tools are refused."""

    def parameters(self, max_tokens: int | None) -> dict[str, Any]:
        """For Tinker; without what was not given."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        given = {"max_tokens": max_tokens, "seed": self.seed, "stop": stop}
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            **{name: value for name, value in given.items() if value is not None},
        }


class RefusedError(Exception):
    """A request that is refused, with its HTTP status."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code

    def body(self) -> dict[str, Any]:
        """OpenAI's error shape."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.code}}


def bridge(sampler: CanSample, tokenizer: Any, version: int, max_model_tokens: int | None) -> Any:
    """The ASGI application.

    Args:
        sampler: Answers.
        tokenizer: With a chat template.
        version: Of the weights; part of every answer.
        max_model_tokens: Prompt and answer together; None where nobody knows.
    """
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    writer = _Writer(tokenizer, str(version))

    async def chat(request: Request) -> Response:
        try:
            asked = _parsed(await request.body())
            prompt = _prompt(tokenizer, asked)
            limit = _max_tokens(asked, len(prompt), max_model_tokens)
            try:
                samples = await sampler.sample(prompt, asked.n, asked.parameters(limit))
            except AglError as error:
                # The gateway tries a 503 again, and not a 401: a key does not become right.
                status = 401 if isinstance(error, ConfigError) else 503
                raise RefusedError(status, str(error)) from None
        except RefusedError as error:
            return JSONResponse(error.body(), error.status)
        answer = writer.answer(asked, prompt, samples)
        if asked.stream:
            return Response(writer.as_stream(asked, answer), media_type="text/event-stream")
        return JSONResponse(answer)

    async def models(request: Request) -> Response:
        card = {"id": MODEL_NAME, "object": "model", "created": 0, "owned_by": "tinker"}
        return JSONResponse({"object": "list", "data": [card]})

    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/models", models),
        ]
    )


def _parsed(body: bytes) -> ChatRequest:
    try:
        asked = ChatRequest.model_validate(json.loads(body) if body else {})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the body"
        why = first["msg"]
        if first["type"] == "extra_forbidden":
            why = "Tinker has no such option; leave it out"
        elif field == "tools":
            why = "tool calls are not parsed; describe the actions in the messages"
        raise RefusedError(400, f"{field!r}: {why}") from None
    except ValueError as error:
        raise RefusedError(400, f"the request body is not valid JSON: {error}") from None
    if asked.model != MODEL_NAME:
        raise RefusedError(
            404, f"unknown model {asked.model!r}; there is {MODEL_NAME!r}", "model_not_found"
        )
    return asked


def _prompt(tokenizer: Any, asked: ChatRequest) -> list[int]:
    messages = [{**message, "content": _text(message)} for message in asked.messages]
    try:
        return tokenizer.apply_chat_template(
            messages,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **asked.chat_template_kwargs,
        )
    except Exception as error:
        # Templates are programs: whatever one refuses is the request's fault.
        raise RefusedError(
            400, f"'messages': the model's chat template refused them: {error}"
        ) from error


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if not isinstance(content, list):
        return content or ""
    kinds = {str(part.get("type")) for part in content if isinstance(part, dict)}
    if kinds - {"text"}:
        raise RefusedError(400, f"'messages': parts of type {sorted(kinds)} are not supported")
    return "".join(str(part.get("text", "")) for part in content)


def _max_tokens(asked: ChatRequest, prompt: int, limit: int | None) -> int | None:
    wanted = asked.max_completion_tokens or asked.max_tokens
    if limit is None:
        return wanted
    room = limit - prompt
    if room < (wanted or 1):
        raise RefusedError(
            400,
            f"the model takes {limit} tokens; the messages have {prompt} and {wanted or 1} were "
            "asked for. Shorten the messages or lower max_tokens",
            "context_length_exceeded",
        )
    return wanted or room


class _Writer:
    """Writes answers of one version."""

    def __init__(self, tokenizer: Any, version: str) -> None:
        self._tokenizer, self._version = tokenizer, version

    def answer(
        self, asked: ChatRequest, prompt: list[int], samples: list[Sampled]
    ) -> dict[str, Any]:
        """The whole answer."""
        sampled = sum(len(one.token_ids) for one in samples)
        return {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": asked.model,
            "model_version": self._version,
            **({"prompt_token_ids": prompt} if asked.return_token_ids else {}),
            "choices": [self._choice(asked, *numbered) for numbered in enumerate(samples)],
            "usage": {
                "prompt_tokens": len(prompt),
                "completion_tokens": sampled,
                "total_tokens": len(prompt) + sampled,
            },
        }

    def _choice(self, asked: ChatRequest, index: int, sample: Sampled) -> dict[str, Any]:
        text = self._tokenizer.decode(sample.token_ids, skip_special_tokens=True)
        for stop in [asked.stop] if isinstance(asked.stop, str) else asked.stop or []:
            text = text.removesuffix(stop)
        choice: dict[str, Any] = {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "finish_reason": sample.finish_reason,
            "logprobs": None,
        }
        if asked.logprobs:
            choice["logprobs"] = {
                "content": [
                    {"token": token, "logprob": value, "bytes": None, "top_logprobs": []}
                    for token, value in zip(
                        (self._tokenizer.decode([one]) for one in sample.token_ids),
                        sample.logprobs,
                        strict=True,
                    )
                ]
            }
        if asked.return_token_ids:
            choice["token_ids"] = sample.token_ids
        return choice

    def as_stream(self, asked: ChatRequest, answer: dict[str, Any]) -> bytes:
        """The same as server-sent events: a chunk with every answer, perhaps one with the usage."""
        usage = answer.pop("usage")
        head = {**answer, "object": "chat.completion.chunk"}
        for choice in head["choices"]:
            choice["delta"] = choice.pop("message")
        chunks = [head]
        if (asked.stream_options or {}).get("include_usage"):
            shared = {name: head[name] for name in ("id", "object", "created", "model")}
            chunks.append({**shared, "choices": [], "usage": usage})
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        return "".join([*lines, "data: [DONE]\n\n"]).encode()
