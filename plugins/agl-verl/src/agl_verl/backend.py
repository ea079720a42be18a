"""The token backend: chat completions over verl's own ``LLMServerClient``.

Agents' calls come here through the gateway. The chat template is applied here, tokens go to
whichever server verl runs (vLLM or SGLang, say), and tokens come back with their log-probabilities
and the weights that sampled them. verl's breaking off and taking up again of requests around a
weight update stays inside ``LLMServerClient``.
"""

import asyncio
import json
import logging
import secrets
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from pydantic import Field

from agl_http.layers import Scope, Send, header, send_whole
from agl_models.completions import (
    AnswerWriter,
    ChatRequest,
    Piece,
    RequestError,
    end_tokens,
    render_prompt,
)
from agl_models.model_app import ModelApp
from agl_models.versions import MODEL_NAME

logger = logging.getLogger("agl.verl")

TEXTS = 2**17
"""How many tokens' texts are kept."""
SAMPLING = {
    *("temperature", "top_p", "top_k", "repetition_penalty", "frequency_penalty"),
    *("presence_penalty", "min_tokens", "seed", "ignore_eos"),
}


class VerlRequest(ChatRequest):
    """A chat completion request; what is None is taken from the configuration."""

    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = None
    repetition_penalty: float | None = Field(default=None, gt=0)
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    min_tokens: int | None = Field(default=None, ge=0)
    ignore_eos: bool | None = None
    tools: list[dict[str, Any]] | None = None
    parallel_tool_calls: Literal[True] | None = None

    @property
    def used_tools(self) -> list[dict[str, Any]] | None:
        """Definitions of the tools that the model may call."""
        return None if self.tool_choice == "none" else self.tools or None

    def sampling(self, defaults: dict[str, Any], max_tokens: int) -> dict[str, Any]:
        """Sampling parameters as verl's servers take them."""
        return {
            **defaults,
            **self.model_dump(include=SAMPLING, exclude_none=True),
            "max_tokens": max_tokens,
            "logprobs": True,
        }


@dataclass
class Serving:
    """How the model is served."""

    client: Any
    """verl's ``LLMServerClient``."""
    tokenizer: Any
    max_model_tokens: int
    """Prompt and answer together."""
    max_answer_tokens: int
    end_token_ids: frozenset[int] = frozenset()
    """Tokens that end an answer, beside the tokenizer's own: a generation configuration may name
    several, of which one ends a tool call, say."""
    vocabulary_size: int | None = None
    """None where the model's configuration does not say."""
    defaults: dict[str, Any] = field(default_factory=dict[str, Any])
    """Sampling parameters of requests that do not say otherwise."""
    template_options: dict[str, Any] = field(default_factory=dict[str, Any])
    tool_parser: Any = None
    """verl's parser of tool calls; None where the model's are not known."""
    is_sticky: bool = False
    """Whether calls of one attempt go to one server, which has their beginning in its cache."""
    seed_name: str = "seed"
    """What the servers call the seed of a request."""
    is_open: Callable[[], bool] = field(default=lambda: True)
    """Whether calls may come: between the rollouts of two steps the trainer may have the GPUs."""


class TokenBackend(ModelApp[VerlRequest]):
    """Answers out of verl's rollout servers.

    Args:
        api_key: What requests must carry; None takes all.
    """

    request_type = VerlRequest
    owner = "agl-verl"
    title = "training with verl"

    def __init__(self, serving: Serving, api_key: str | None = None) -> None:
        super().__init__(MODEL_NAME, api_key)
        self._serving = serving
        self._eos = end_tokens(serving.tokenizer) | serving.end_token_ids
        # Answers repeat tokens, and decoding one takes longer than all else here.
        self._text_of = lru_cache(TEXTS)(lambda token: serving.tokenizer.decode([token]))

    async def answer(self, request: VerlRequest, scope: Scope, send: Send) -> None:
        """Have the choices of a request sampled."""
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
        writer = AnswerWriter(request, answer_id, prompt_ids)
        # verl sends requests of one id to one server.
        of_attempt = header(scope, b"x-session-id") if self._serving.is_sticky else b""
        attempt = of_attempt.decode("latin-1")
        pieces = await asyncio.gather(
            *(
                self._sample(
                    request, attempt or f"{answer_id}-{index}", index, prompt_ids, max_tokens
                )
                for index in range(request.n)
            )
        )
        await send_whole(send, 200, *writer.answer(pieces))

    def _prompt(self, request: VerlRequest) -> list[int]:
        tools = request.used_tools
        if tools and self._serving.tool_parser is None:
            raise RequestError(
                400,
                "'tools': no parser of tool calls is configured; set "
                "actor_rollout_ref.rollout.multi_turn.format, for example to 'hermes'",
            )
        serving = self._serving
        return render_prompt(serving.tokenizer, request, tools, **serving.template_options)

    def _max_tokens(self, request: VerlRequest, prompt_tokens: int) -> int:
        room = self._serving.max_model_tokens - prompt_tokens
        if room < 1:
            raise RequestError(
                400,
                f"the model takes {self._serving.max_model_tokens} tokens, prompt and answer "
                f"together; the messages have {prompt_tokens}. Shorten them, or raise "
                "actor_rollout_ref.rollout.max_model_len",
                "context_length_exceeded",
            )
        return min(room, self._serving.max_answer_tokens, request.token_limit or room)

    async def _sample(
        self,
        request: VerlRequest,
        request_id: str,
        index: int,
        prompt_ids: list[int],
        max_tokens: int,
    ) -> Piece:
        sampling = request.sampling(self._serving.defaults, max_tokens)
        if "seed" in sampling:
            sampling[self._serving.seed_name] = sampling.pop("seed") + index
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
        text, calls = await self._read(request, token_ids)
        finish = "stop" if ended or stopped else "length"
        if stopped:
            text = text[: min(text.find(stop) for stop in request.stop_texts if stop in text)]
        return Piece(
            index=index,
            text=text,
            token_ids=token_ids,
            logprobs=logprobs,
            token_texts=[self._text_of(token) for token in token_ids] if request.logprobs else None,
            finish_reason="tool_calls" if calls else finish,
            version=_version(output.extra_fields),
            num_tokens=len(token_ids),
            tool_calls=calls,
        )

    def _cut(
        self, request: VerlRequest, token_ids: list[int], logprobs: list[float]
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
        self, request: VerlRequest, token_ids: list[int]
    ) -> tuple[str, list[dict[str, Any]]]:
        """Text and tool calls of an answer."""
        tokenizer = self._serving.tokenizer
        # Not every tokenizer knows that the token which ends an answer is no text.
        kept = [token for token in token_ids if token not in self._eos]
        plain = tokenizer.decode(kept, skip_special_tokens=True)
        if not request.used_tools:
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
    first, last = extra.get("min_global_steps") or 0, extra.get("max_global_steps") or 0
    return str(first) if first == last else f"{first}-{last}"


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
