"""An OpenAI-compatible address in front of Tinker's sampling, for agents behind the gateway.

Token ids and log-probabilities are exactly what Tinker was given and gave. Tinker does not stream;
a stream brings each answer in one chunk.
"""

import secrets
from collections.abc import Mapping
from typing import Any

from agl.errors import AglError, ConfigError
from agl_http.layers import Scope, Send, send_whole
from agl_models.completions import (
    AnswerWriter,
    Piece,
    RequestError,
    TextRequest,
    render_prompt,
    room_for_answer,
)
from agl_models.model_app import ModelApp
from agl_models.versions import MODEL_NAME
from agl_tinker.service import sample


class TinkerRequest(TextRequest):
    """A chat completion request. What Tinker cannot do is refused, not left out silently."""

    top_k: int = -1

    def parameters(self, max_tokens: int | None) -> dict[str, Any]:
        """For Tinker; without what was not given."""
        given = {"max_tokens": max_tokens, "seed": self.seed, "stop": list(self.stop_texts) or None}
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            **{name: value for name, value in given.items() if value is not None},
        }


class Bridge(ModelApp[TinkerRequest]):
    """The ASGI application.

    Args:
        sampler: Tinker's client.
        tokenizer: With a chat template.
        version: Of the weights; part of every answer.
        max_model_tokens: Prompt and answer together; None where nobody knows.
    """

    request_type = TinkerRequest
    owner = "tinker"
    title = "Tinker"
    explained: Mapping[str, str] = {
        "tools": "tool calls are not parsed; describe the actions in the messages"
    }

    def __init__(
        self, sampler: Any, tokenizer: Any, version: int, max_model_tokens: int | None
    ) -> None:
        super().__init__(MODEL_NAME)
        self._sampler = sampler
        self._tokenizer = tokenizer
        self._version = str(version)
        self._max_model_tokens = max_model_tokens

    async def answer(self, request: TinkerRequest, scope: Scope, send: Send) -> None:
        """Have the choices of a request sampled."""
        prompt = render_prompt(self._tokenizer, request)
        limit = request.token_limit
        if self._max_model_tokens is not None:
            limit = room_for_answer(request, len(prompt), self._max_model_tokens)
        try:
            samples = await sample(self._sampler, prompt, request.n, request.parameters(limit))
        except AglError as error:
            # The gateway tries a 503 again, and not a 401: a key does not become right.
            status = 401 if isinstance(error, ConfigError) else 503
            raise RequestError(status, str(error)) from None
        writer = AnswerWriter(request, f"chatcmpl-{secrets.token_hex(12)}", prompt)
        pieces = [self._piece(request, *numbered) for numbered in enumerate(samples)]
        await send_whole(send, 200, *writer.answer(pieces))

    def _piece(self, request: TinkerRequest, index: int, sample: Any) -> Piece:
        decode, token_ids = self._tokenizer.decode, sample.tokens
        text = decode(token_ids, skip_special_tokens=True)
        for stop in request.stop_texts:
            text = text.removesuffix(stop)
        return Piece(
            index=index,
            text=text,
            token_ids=token_ids,
            logprobs=sample.logprobs or [],
            token_texts=[decode([one]) for one in token_ids] if request.logprobs else None,
            finish_reason=sample.stop_reason,
            version=self._version,
            num_tokens=len(token_ids),
        )
