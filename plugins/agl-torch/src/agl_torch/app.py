"""The ASGI application: chat completions out of a sampler, whole or as a stream."""

import asyncio
import logging
import secrets
from collections.abc import Mapping
from typing import Any

from agl.http.layers import EVENTS, JSON, Scope, Send, begin, send_whole
from agl_learning.completions import (
    END_OF_STREAM,
    AnswerWriter,
    Piece,
    RequestError,
    TextRequest,
    render_prompt,
    room_for_answer,
)
from agl_learning.model_app import ModelApp
from agl_torch.batcher import Answered, Batcher, Weights
from agl_torch.generate import Completion, Sampler, SamplingRequest
from agl_torch.textstream import TextStream

logger = logging.getLogger("agl.torch")


class ChatApp(ModelApp[TextRequest]):
    """Samples the answers in batches.

    Args:
        sampler: Answers.
        weights: The lock of the sampler's weights, and their version.
        model_name: What requests must ask for.
        max_model_tokens: Prompt and answer together.
        window_seconds: See ``Batcher``.
        max_batch_size: See ``Batcher``.
        api_key: What requests must carry; None takes all.
    """

    request_type = TextRequest
    owner = "agl-torch"
    title = "agl-torch's server"
    max_body_bytes = 2**24
    explained: Mapping[str, str] = {
        "tools": f"{title} does not parse tool calls; describe the actions in the messages and "
        "read them from the text"
    }

    def __init__(
        self,
        sampler: Sampler,
        weights: Weights,
        model_name: str,
        max_model_tokens: int,
        window_seconds: float,
        max_batch_size: int,
        api_key: str | None = None,
    ) -> None:
        super().__init__(model_name, api_key)
        self._sampler = sampler
        self._tokenizer = sampler.tokenizer
        self._weights = weights
        self._max_model_tokens = max_model_tokens
        self._window_seconds = window_seconds
        self._max_batch_size = max_batch_size
        self._batcher: Batcher | None = None

    async def start(self) -> None:
        """Begin to take requests."""
        self._batcher = Batcher(
            self._sampler, self._weights, self._window_seconds, self._max_batch_size
        )

    async def close(self) -> None:
        """Let go of the sampler."""
        assert self._batcher is not None  # made when the application started
        await self._batcher.close()

    def card(self) -> dict[str, Any]:
        """The limit, by vLLM's name for it."""
        return {"max_model_len": self._max_model_tokens}

    def health(self) -> dict[str, Any]:
        """The version of the weights."""
        return {"model_version": str(self._weights.version)}

    async def answer(self, request: TextRequest, scope: Scope, send: Send) -> None:
        """Sample the choices of a request."""
        prompt_token_ids = render_prompt(self._tokenizer, request)
        max_tokens = room_for_answer(request, len(prompt_token_ids), self._max_model_tokens)
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

    async def _sample(self, request: SamplingRequest) -> Answered:
        assert self._batcher is not None  # made when the application started
        try:
            return await self._batcher.submit(request)
        except Exception as error:
            logger.exception("sampling failed")
            raise RequestError(500, f"sampling failed: {error!r}") from error

    async def _answer_whole(
        self,
        request: TextRequest,
        sampling: list[SamplingRequest],
        writer: AnswerWriter,
        send: Send,
    ) -> None:
        answers = await asyncio.gather(*(self._sample(one) for one in sampling))
        pieces = [
            self._ended(request, index, completion, version)
            for index, (completion, version) in enumerate(answers)
        ]
        await send_whole(send, 200, writer.whole(pieces), JSON)

    def _ended(
        self, request: TextRequest, index: int, completion: Completion, version: str
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

    def _token_texts(self, request: TextRequest, token_ids: list[int]) -> list[str] | None:
        if not request.logprobs:
            return None
        return [self._tokenizer.decode([token_id]) for token_id in token_ids]

    async def _answer_in_chunks(
        self,
        request: TextRequest,
        sampling: list[SamplingRequest],
        writer: AnswerWriter,
        send: Send,
    ) -> None:
        stream = TextStream(self._sampler, sampling)
        tasks = [
            asyncio.create_task(self._sample(one), name="agl-torch-stream")
            for one in stream.requests
        ]
        await begin(send, 200, EVENTS)
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
            if request.wants_usage:
                await _write(send, writer.usage_chunk(ended))
            await _write(send, END_OF_STREAM)
        except RequestError as error:
            # The status line is out: the error can only travel in the stream.
            await _write(send, b"data: " + error.body() + b"\n\n")
        finally:
            for task in tasks:
                task.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _write(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
