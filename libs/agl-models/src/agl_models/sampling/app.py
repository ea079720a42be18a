"""The ASGI application: chat completions out of a sampler, whole or as a stream."""

import asyncio
import logging
import secrets
from dataclasses import replace
from typing import Any

from agl_http.layers import EVENTS, JSON, Scope, Send, begin, send_whole
from agl_models.completions import (
    END_OF_STREAM,
    AnswerWriter,
    Piece,
    RequestError,
    render_prompt,
    room_for_answer,
)
from agl_models.model_app import ModelApp
from agl_models.sampling.batcher import Answered, Batcher, Weights
from agl_models.sampling.forms import CALL, FormRequest, Forms, split_calls
from agl_models.sampling.sequences import Completion, Sampler, SamplingRequest
from agl_models.sampling.text_stream import TextStream
from agl_models.task_group import gather_or_cancel

logger = logging.getLogger("agl.models")


class ChatApp(ModelApp[FormRequest]):
    """Samples the answers in batches.

    Args:
        sampler: Answers.
        weights: The lock of the sampler's weights, and their version.
        model_name: What requests must ask for.
        max_model_tokens: Prompt and answer together.
        api_key: What requests must carry; None takes all.
    """

    request_type = FormRequest
    max_body_bytes = 2**24

    def __init__(
        self,
        sampler: Sampler,
        weights: Weights,
        model_name: str,
        max_model_tokens: int,
        api_key: str | None = None,
    ) -> None:
        super().__init__(model_name, api_key)
        self._sampler = sampler
        self._forms = Forms(sampler.tokenizer, sampler.vocabulary_size, sampler.end_token_ids)
        self._weights = weights
        self._max_model_tokens = max_model_tokens

    async def start(self) -> None:
        """Begin to take requests."""
        self._batcher = Batcher(self._sampler, self._weights)

    async def close(self) -> None:
        """Let go of the sampler."""
        await self._batcher.close()

    def card(self) -> dict[str, Any]:
        """The limit, by vLLM's name for it."""
        return {"max_model_len": self._max_model_tokens}

    def health(self) -> dict[str, Any]:
        """The version of the weights."""
        return {"model_version": str(self._weights.version)}

    def prompt(self, request: FormRequest) -> list[int]:
        """Its messages and tools by the model's chat template."""
        return render_prompt(self._sampler.tokenizer, request, request.used_tools)

    async def answer(self, request: FormRequest, scope: Scope, send: Send) -> None:
        """Sample the choices of a request."""
        constraint = self._forms.constraint(request)
        prompt_token_ids = self.prompt(request)
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
                constraint=constraint,
            )
            for index in range(request.n)
        ]
        if request.stream:
            await self._answer_in_chunks(request, sampling, writer, send)
            return
        answers = await gather_or_cancel(self._sample(one) for one in sampling)
        pieces = [
            self._ended(request, index, sampling[index], completion, version)
            for index, (completion, version) in enumerate(answers)
        ]
        await send_whole(send, 200, writer.whole(pieces), JSON)

    async def _sample(self, request: SamplingRequest) -> Answered:
        try:
            return await self._batcher.submit(request)
        except RequestError:
            raise
        except Exception as error:
            logger.exception("sampling failed")
            raise RequestError(500, f"sampling failed: {error!r}") from error

    def _ended(
        self,
        request: FormRequest,
        index: int,
        sampling: SamplingRequest,
        completion: Completion,
        version: str,
    ) -> Piece:
        text, calls, reason = completion.text, [], completion.finish_reason
        decode = self._sampler.tokenizer.decode if request.logprobs else None
        if request.used_tools:
            text, calls = split_calls(text, sampling.prompt_token_ids, index)
        return Piece(
            index=index,
            text=text,
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
            token_texts=[decode([one]) for one in completion.token_ids] if decode else None,
            finish_reason="tool_calls" if calls and reason == "stop" else reason,
            stop_reason=completion.stop_reason,
            version=version,
            num_tokens=len(completion.token_ids),
            tool_calls=calls,
        )

    async def _answer_in_chunks(
        self,
        request: FormRequest,
        sampling: list[SamplingRequest],
        writer: AnswerWriter,
        send: Send,
    ) -> None:
        stream = TextStream(self._sampler.decode, sampling, (CALL,) if request.used_tools else ())
        tasks = [
            asyncio.create_task(self._sample(one), name="agl-stream") for one in stream.requests
        ]
        ended: list[Piece] = []
        decode = self._sampler.tokenizer.decode if request.logprobs else None
        try:
            await begin(send, 200, EVENTS)
            for index in range(len(sampling)):
                await _write(send, writer.first_chunk(index))
            async for index, token_id, logprob, text in stream.tokens(tasks):
                piece = Piece(
                    index=index,
                    text=text,
                    token_ids=[token_id],
                    logprobs=[logprob],
                    token_texts=[decode([token_id])] if decode else None,
                )
                await _write(send, writer.chunk(piece))
            for index, task in enumerate(tasks):
                completion, version = await task
                whole = self._ended(request, index, sampling[index], completion, version)
                nothing: dict[str, Any] = {"token_ids": [], "logprobs": [], "token_texts": None}
                piece = replace(whole, text=stream.rest(index, whole.text), **nothing)
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
