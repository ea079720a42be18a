"""The ASGI application: chat completions out of a sampler, whole or as a stream."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from agl_torch.batcher import Answered, Batcher, Weights
from agl_torch.generate import Completion, Sampler, SamplingRequest
from agl_torch.protocol import (
    AnswerWriter,
    ChatRequest,
    Piece,
    RequestError,
    dumps,
    parse_request,
    template_messages,
)
from agl_torch.textstream import TextStream

logger = logging.getLogger("agl.torch")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_BODY_BYTES = 2**24


class ChatApp:
    """Serves ``/v1/chat/completions``, ``/v1/models`` and ``/health``.

    Args:
        sampler: Answers.
        weights: The lock of the sampler's weights, and their version.
        model_name: What requests must ask for.
        max_model_tokens: Prompt and answer together.
        window_seconds: See ``Batcher``.
        max_batch_size: See ``Batcher``.
    """

    def __init__(
        self,
        sampler: Sampler,
        weights: Weights,
        model_name: str,
        max_model_tokens: int,
        window_seconds: float,
        max_batch_size: int,
    ) -> None:
        self._sampler = sampler
        self._tokenizer = sampler.tokenizer
        self._weights = weights
        self._model_name = model_name
        self._max_model_tokens = max_model_tokens
        self._window_seconds = window_seconds
        self._max_batch_size = max_batch_size
        self._batcher: Batcher | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            self._batcher = Batcher(
                self._sampler, self._weights, self._window_seconds, self._max_batch_size
            )
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self._batcher.close()
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http":
            try:
                await self._route(scope, receive, send)
            except RequestError as error:
                await _send_json(send, error.status, error.body())

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = (scope["method"], scope["path"])
        if route == ("POST", "/v1/chat/completions"):
            await self._chat(parse_request(await _read_body(receive)), send)
        elif route == ("GET", "/v1/models"):
            card = {
                "id": self._model_name,
                "object": "model",
                "created": 0,
                "owned_by": "agl-torch",
                "max_model_len": self._max_model_tokens,
            }
            await _send_json(send, 200, dumps({"object": "list", "data": [card]}))
        elif route == ("GET", "/health"):
            await _send_json(
                send, 200, dumps({"status": "ok", "model_version": str(self._weights.version)})
            )
        else:
            raise RequestError(
                404,
                f"no such address: {route[0]} {route[1]}; this server has "
                "POST /v1/chat/completions, GET /v1/models and GET /health",
            )

    async def _chat(self, request: ChatRequest, send: Send) -> None:
        if request.model != self._model_name:
            raise RequestError(
                404,
                f"unknown model {request.model!r}; this server has {self._model_name!r}",
                "model_not_found",
            )
        prompt_token_ids = self._prompt(request)
        max_tokens = self._max_tokens(request, len(prompt_token_ids))
        writer = AnswerWriter(request, f"chatcmpl-{secrets.token_hex(12)}", prompt_token_ids)
        sampling = [
            SamplingRequest(
                prompt_token_ids=prompt_token_ids,
                max_tokens=max_tokens,
                temperature=request.temperature,
                top_p=request.top_p,
                stop=request.stop_texts,
                # Choices of one request differ from each other, and the same way every time.
                seed=None if request.seed is None else f"{request.seed}/{index}",
            )
            for index in range(request.n)
        ]
        if request.stream:
            await self._answer_in_chunks(request, sampling, writer, send)
        else:
            await self._answer_whole(request, sampling, writer, send)

    def _prompt(self, request: ChatRequest) -> list[int]:
        try:
            return self._tokenizer.apply_chat_template(
                template_messages(request.messages),
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
                **request.chat_template_kwargs,
            )
        except RequestError:
            raise
        except Exception as error:
            # Templates are programs: whatever one refuses is the request's fault.
            raise RequestError(
                400, f"'messages': the model's chat template refused them: {error}"
            ) from error

    def _max_tokens(self, request: ChatRequest, prompt_tokens: int) -> int:
        room = self._max_model_tokens - prompt_tokens
        asked = request.token_limit
        if room < (asked or 1):
            raise RequestError(
                400,
                f"the model takes {self._max_model_tokens} tokens; the messages have "
                f"{prompt_tokens} and {asked or 1} were asked for. Shorten the messages or lower "
                "max_tokens",
                "context_length_exceeded",
            )
        return asked or room

    async def _sample(self, request: SamplingRequest) -> Answered:
        assert self._batcher is not None  # made when the application started
        try:
            return await self._batcher.submit(request)
        except Exception as error:
            logger.exception("sampling failed")
            raise RequestError(500, f"sampling failed: {error!r}") from error

    async def _answer_whole(
        self,
        request: ChatRequest,
        sampling: list[SamplingRequest],
        writer: AnswerWriter,
        send: Send,
    ) -> None:
        answers = await asyncio.gather(*(self._sample(one) for one in sampling))
        pieces = [
            self._ended(request, index, completion, version)
            for index, (completion, version) in enumerate(answers)
        ]
        await _send_json(send, 200, writer.whole(pieces))

    def _ended(
        self, request: ChatRequest, index: int, completion: Completion, version: str
    ) -> Piece:
        return Piece(
            index=index,
            text=completion.text,
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
            token_texts=self._token_texts(request, completion.token_ids),
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            version=version,
            num_tokens=len(completion.token_ids),
        )

    def _token_texts(self, request: ChatRequest, token_ids: list[int]) -> list[str] | None:
        if not request.logprobs:
            return None
        return [self._tokenizer.decode([token_id]) for token_id in token_ids]

    async def _answer_in_chunks(
        self,
        request: ChatRequest,
        sampling: list[SamplingRequest],
        writer: AnswerWriter,
        send: Send,
    ) -> None:
        stream = TextStream(self._sampler, sampling)
        tasks = [
            asyncio.create_task(self._sample(one), name="agl-torch-stream")
            for one in stream.requests
        ]
        await _start(send, 200, b"text/event-stream")
        for index in range(len(sampling)):
            await _write(send, writer.first_chunk(index))
        ended: list[Piece] = []
        try:
            async for index, token_id, logprob, text in stream.tokens(tasks):
                piece = Piece(
                    index=index,
                    text=text,
                    token_ids=[token_id],
                    logprobs=[logprob],
                    token_texts=self._token_texts(request, [token_id]),
                )
                await _write(send, writer.chunk(piece))
            for index, task in enumerate(tasks):
                completion, version = await task
                piece = Piece(
                    index=index,
                    text=stream.rest(index, completion.text),
                    token_ids=[],
                    finish_reason=completion.finish_reason,
                    stop_reason=completion.stop_reason,
                    version=version,
                    num_tokens=len(completion.token_ids),
                )
                ended.append(piece)
                await _write(send, writer.chunk(piece))
            if request.stream_options is not None and request.stream_options.include_usage:
                await _write(send, writer.usage_chunk(ended))
            await _write(send, b"data: [DONE]\n\n")
        except RequestError as error:
            # The status line is out: the error can only travel in the stream.
            await _write(send, b"data: " + error.body() + b"\n\n")
        finally:
            for task in tasks:
                task.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


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
