"""A call to another provider through LiteLLM's library.

LiteLLM is imported when the first such call is made, and not before.
"""

import asyncio
import importlib
import logging
import os
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from agl_gateway.backends import Answer, Backend
from agl_gateway.dialect import Exchange, dumps
from agl_gateway.errors import BrokenOffError, RefusedError, error_body
from agl_gateway.providers import provider_of

CALL_FIELDS = frozenset(
    (
        *("frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_tokens"),
        *("messages", "model", "n", "parallel_tool_calls", "presence_penalty"),
        *("reasoning_effort", "response_format", "seed", "stop", "stream", "stream_options"),
        *("temperature", "tool_choice", "tools", "top_k", "top_logprobs", "top_p", "user"),
    )
)
"""What an agent may set. Not LiteLLM's own arguments, such as where the call and its key go."""
JSON = {"content-type": "application/json"}


async def ask(backend: Backend, exchange: Exchange, path: str) -> Answer:
    """Make a call of chat completions; no other can be made.

    Raises:
        RefusedError: It cannot be made.
        ConnectionError: The provider cannot be reached.
    """
    provider = str(provider_of(backend.model))
    if path != "chat/completions":
        raise RefusedError(
            400,
            f"model {backend.model_name!r} of provider {provider!r} has no /v1/{path}; use "
            "/v1/chat/completions",
        )
    fields: dict[str, Any] = msgspec.json.decode(exchange.body_for(backend.model, ()))
    for name in fields:
        if name not in CALL_FIELDS:
            raise RefusedError(
                400,
                f"{name}: cannot be passed to provider {provider!r}; leave it out",
                "unsupported_parameter",
            )
    # Its import takes seconds, which must not stop the other calls.
    litellm = await asyncio.to_thread(_import_litellm)
    try:
        answer = await litellm.acompletion(
            **{**fields, **(backend.provider_parameters or {})}, num_retries=0, max_retries=0
        )
    except litellm.exceptions.APIConnectionError as error:
        raise ConnectionError(_message(error)) from None
    except Exception as error:
        status = getattr(error, "status_code", None)
        if not isinstance(status, int) or status < 400:
            raise
        headers = getattr(getattr(error, "response", None), "headers", None) or {}
        said = _whole(error_body(status, _message(error)))
        return Answer(status, {**headers, **JSON}, said)
    if exchange.is_stream:
        return Answer(200, {"content-type": "text/event-stream"}, _events(answer))
    return Answer(200, JSON, _whole(dumps(answer.model_dump(exclude_none=True))))


async def _events(stream: Any) -> AsyncIterator[bytes]:
    """LiteLLM's chunks, as an OpenAI-compatible server would send them."""
    try:
        async for chunk in stream:
            yield b"data: " + dumps(chunk.model_dump(exclude_none=True)) + b"\n\n"
    except Exception as error:
        raise BrokenOffError(_message(error)) from None
    finally:
        # Also when the agent has gone: the provider need not go on.
        await stream.aclose()
    yield b"data: [DONE]\n\n"


async def _whole(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _import_litellm() -> Any:
    # Without it the import asks the network for a list of prices.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm: Any = importlib.import_module("litellm")
    litellm.suppress_debug_info = True
    logging.getLogger("LiteLLM").setLevel(logging.WARNING)
    return litellm


def _message(error: Exception) -> str:
    message = str(getattr(error, "message", "") or error) or type(error).__name__
    return message.split("\nTraceback", 1)[0]
