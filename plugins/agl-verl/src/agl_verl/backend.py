"""The token backend: chat completions over verl's own ``LLMServerClient``.

Agents' calls come here through the gateway. The chat template is applied here, tokens go to
whichever server verl runs (vLLM, SGLang, the CPU replica of ``agl_verl.testing``), and tokens come
back with their log-probabilities and the weights that sampled them. verl's breaking off and taking
up again of requests around a weight update stays inside ``LLMServerClient``.
"""

import asyncio
import hmac
import json
import logging
import secrets
from bisect import bisect_left
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from agl_verl.affinity import Conversations
from agl_verl.chat import (
    ChatRequest,
    Choice,
    RequestError,
    answer,
    chunks,
    dumps,
    parse,
    template_messages,
)

logger = logging.getLogger("agl.verl")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_BODY_BYTES = 2**26
TEXTS = 2**17
"""How many tokens' texts are kept."""
MODEL_NAME = "policy"
"""What agents and the gateway call the model that is trained."""


@dataclass
class Serving:
    """How the model is served."""

    client: Any
    """verl's ``LLMServerClient``."""
    tokenizer: Any
    max_model_tokens: int
    """Prompt and answer together."""
    max_answer_tokens: int
    defaults: dict[str, Any] = field(default_factory=dict[str, Any])
    """Sampling parameters of requests that do not say otherwise."""
    template_options: dict[str, Any] = field(default_factory=dict[str, Any])
    tool_parser: Any = None
    """verl's parser of tool calls; None where the model's are not known."""
    conversations: Conversations | None = None
    """Keeps calls of one conversation at one server; None where there is but one."""
    is_open: Callable[[], bool] = field(default=lambda: True)
    """Whether calls may come: between the rollouts of two steps the trainer may have the GPUs."""


class TokenBackend:
    """Serves ``/v1/chat/completions``, ``/v1/models`` and ``/health``.

    Args:
        serving: The model.
        api_key: What requests must carry; None takes all.
    """

    def __init__(self, serving: Serving, api_key: str | None = None) -> None:
        self._serving = serving
        self._authorization = None if api_key is None else f"Bearer {api_key}".encode()
        self._eos = _eos_ids(serving.tokenizer)
        # Answers repeat tokens, and decoding one takes longer than all else here.
        self._text_of = lru_cache(TEXTS)(lambda token: serving.tokenizer.decode([token]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http":
            try:
                await self._route(scope, receive, send)
            except RequestError as error:
                await _send_json(send, error.status, error.body())

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = (scope["method"], scope["path"])
        if self._authorization is not None and route[1] != "/health":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._authorization):
                raise RequestError(401, "wrong or missing API key", "invalid_api_key")
        if route == ("POST", "/v1/chat/completions"):
            await self._chat(parse(await _read_body(receive)), send)
        elif route == ("GET", "/v1/models"):
            card = {"id": MODEL_NAME, "object": "model", "created": 0, "owned_by": "agl-verl"}
            await _send_json(send, 200, dumps({"object": "list", "data": [card]}))
        elif route == ("GET", "/health"):
            await _send_json(send, 200, b'{"status":"ok"}')
        else:
            raise RequestError(404, f"no such address: {route[0]} {route[1]}")

    async def _chat(self, request: ChatRequest, send: Send) -> None:
        if request.model != MODEL_NAME:
            raise RequestError(
                404, f"unknown model {request.model!r}; there is {MODEL_NAME!r}", "model_not_found"
            )
        if not self._serving.is_open():
            raise RequestError(
                503,
                "the model is being trained: in the mode 'sync' calls are answered only while "
                "rollouts run. This call belongs to none",
                "model_paused",
            )
        prompt_ids = self._prompt(request)
        max_tokens = self._max_tokens(request, len(prompt_ids))
        answer_id = f"chatcmpl-{secrets.token_hex(12)}"
        choices = await asyncio.gather(
            *(
                self._sample(request, f"{answer_id}-{index}", prompt_ids, max_tokens)
                for index in range(request.n)
            )
        )
        if not request.stream:
            await _send_json(
                send, 200, dumps(answer(request, answer_id, prompt_ids, list(choices)))
            )
            return
        await _start(send, 200, b"text/event-stream")
        for event in chunks(request, answer_id, prompt_ids, list(choices)):
            await _write(send, b"data: " + dumps(event) + b"\n\n")
        await _write(send, b"data: [DONE]\n\n")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _prompt(self, request: ChatRequest) -> list[int]:
        tools = request.tools if request.tool_choice != "none" else None
        if tools and self._serving.tool_parser is None:
            raise RequestError(
                400,
                "'tools': no parser of tool calls is configured; set "
                "actor_rollout_ref.rollout.multi_turn.format, for example to 'hermes'",
            )
        options = {**self._serving.template_options, **request.chat_template_kwargs}
        try:
            return list(
                self._serving.tokenizer.apply_chat_template(
                    template_messages(request.messages),
                    tools=tools,
                    add_generation_prompt=True,
                    tokenize=True,
                    return_dict=False,
                    **options,
                )
            )
        except RequestError:
            raise
        except Exception as error:
            # Templates are programs: whatever one refuses is the request's fault.
            raise RequestError(
                400, f"'messages': the model's chat template refused them: {error}"
            ) from error

    def _max_tokens(self, request: ChatRequest, prompt_tokens: int) -> int:
        room = self._serving.max_model_tokens - prompt_tokens
        if room < 1:
            raise RequestError(
                400,
                f"the model takes {self._serving.max_model_tokens} tokens, prompt and answer "
                f"together; the messages have {prompt_tokens}. Shorten them, or raise "
                "actor_rollout_ref.rollout.max_model_len",
                "context_length_exceeded",
            )
        asked = request.max_completion_tokens or request.max_tokens
        limits = (room, self._serving.max_answer_tokens, asked or room)
        return min(limits)

    async def _sample(
        self, request: ChatRequest, request_id: str, prompt_ids: list[int], max_tokens: int
    ) -> Choice:
        sampling = request.sampling(self._serving.defaults, max_tokens)
        conversations = self._serving.conversations
        if conversations is not None:
            request_id = conversations.find(prompt_ids, request_id)
        try:
            output = await self._serving.client.generate(
                request_id, prompt_ids=prompt_ids, sampling_params=sampling
            )
        except Exception as error:
            logger.exception("a rollout server failed")
            raise RequestError(502, f"a rollout server of verl failed: {error!r}") from error
        token_ids, logprobs = list(output.token_ids), list(output.log_probs or [])
        ended = bool(token_ids) and token_ids[-1] in self._eos
        token_ids, logprobs, stopped = self._cut(request, token_ids, logprobs)
        if conversations is not None:
            conversations.add(prompt_ids, token_ids, request_id)
        text, calls = await self._read(request, token_ids)
        finish = "stop" if ended or stopped else "length"
        if stopped:
            text = text[: min(text.find(stop) for stop in request.stop_texts if stop in text)]
        return Choice(
            text=text,
            token_ids=token_ids,
            logprobs=logprobs,
            token_texts=[self._text_of(token) for token in token_ids] if request.logprobs else [],
            finish_reason="tool_calls" if calls else finish,
            version=_version(output.extra_fields),
            tool_calls=calls,
        )

    def _cut(
        self, request: ChatRequest, token_ids: list[int], logprobs: list[float]
    ) -> tuple[list[int], list[float], bool]:
        """The tokens up to the first stop text; verl's servers know tokens and no texts."""
        stops = request.stop_texts
        if not stops:
            return token_ids, logprobs, False
        decode = self._serving.tokenizer.decode

        def is_over(count: int) -> bool:
            text = decode(token_ids[:count], skip_special_tokens=True)
            return any(stop in text for stop in stops)

        if not is_over(len(token_ids)):
            return token_ids, logprobs, False
        # Once a stop text is there it stays: the first count at which it is, by halves.
        count = bisect_left(range(len(token_ids)), True, key=is_over)
        return token_ids[:count], logprobs[:count], True

    async def _read(
        self, request: ChatRequest, token_ids: list[int]
    ) -> tuple[str, list[dict[str, Any]]]:
        """Text and tool calls of an answer."""
        tokenizer = self._serving.tokenizer
        # Not every tokenizer knows that the token which ends an answer is no text.
        kept = [token for token in token_ids if token not in self._eos]
        plain = tokenizer.decode(kept, skip_special_tokens=True)
        if not request.tools or request.tool_choice == "none":
            return plain, []
        text, found = await self._serving.tool_parser.extract_tool_calls(kept)
        if not found:
            return plain, []
        calls = [
            {
                "id": call.tool_call_id or f"call_{secrets.token_hex(8)}",
                "type": "function",
                "function": {"name": call.name, "arguments": _as_text(call.arguments)},
            }
            for call in found
        ]
        return text.strip(), calls


def _version(extra: dict[str, Any]) -> str:
    """``"3"``, or ``"3-4"`` for an answer that began with the weights of step 3."""
    first, last = extra.get("min_global_steps"), extra.get("max_global_steps")
    first, last = first or 0, last or 0
    return str(first) if first == last else f"{first}-{last}"


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _eos_ids(tokenizer: Any) -> set[int]:
    found: Any = getattr(tokenizer, "eos_token_id", None)
    return set(found) if isinstance(found, list | tuple) else {found} - {None}


async def _read_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            raise RequestError(413, f"the request body is larger than {MAX_BODY_BYTES} bytes")
        if not message.get("more_body"):
            return b"".join(parts)


async def _send_json(send: Send, status: int, body: bytes) -> None:
    await _start(send, status, b"application/json", len(body))
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _start(send: Send, status: int, kind: bytes, length: int | None = None) -> None:
    headers = [(b"content-type", kind)]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _write(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
