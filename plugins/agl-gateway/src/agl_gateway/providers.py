"""Calls to other providers (Anthropic, Azure, Bedrock ...) through LiteLLM's library.

LiteLLM is imported when the first such call is made, and not before.
"""

import asyncio
import importlib
import importlib.util
import logging
import os
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from agl.errors import ConfigError, install_line
from agl_gateway.dialect import Exchange, dumps
from agl_gateway.errors import RefusedError, error_body

if TYPE_CHECKING:
    from agl_gateway.backends import Backend

PROVIDERS = (
    "ai21",
    "anthropic",
    "azure",
    "azure_ai",
    "bedrock",
    "cerebras",
    "cohere",
    "cohere_chat",
    "databricks",
    "deepinfra",
    "deepseek",
    "fireworks_ai",
    "gemini",
    "github",
    "groq",
    "huggingface",
    "mistral",
    "nvidia_nim",
    "ollama",
    "ollama_chat",
    "openrouter",
    "perplexity",
    "replicate",
    "sagemaker",
    "sagemaker_chat",
    "sambanova",
    "together_ai",
    "vertex_ai",
    "watsonx",
    "xai",
)
"""First part of ``litellm_params.model`` for which LiteLLM is used."""

PARAMETERS = (
    "model",
    "api_base",
    "api_key",
    "api_version",
    "aws_access_key_id",
    "aws_bedrock_runtime_endpoint",
    "aws_profile_name",
    "aws_region_name",
    "aws_role_name",
    "aws_secret_access_key",
    "aws_session_name",
    "aws_session_token",
    "aws_web_identity_token",
    "azure_ad_token",
    "client_id",
    "client_secret",
    "extra_headers",
    "organization",
    "tenant_id",
    "timeout",
    "vertex_credentials",
    "vertex_location",
    "vertex_project",
)
"""What ``litellm_params`` may hold for them."""

CALL_FIELDS = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "model",
        "n",
        "parallel_tool_calls",
        "presence_penalty",
        "reasoning_effort",
        "response_format",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "tool_choice",
        "tools",
        "top_k",
        "top_logprobs",
        "top_p",
        "user",
    }
)
"""What an agent may set. Not LiteLLM's own arguments, such as where the call and its key go."""


def provider_of(model: str) -> str | None:
    """Which provider LiteLLM is asked for, or None for an OpenAI-compatible server."""
    prefix, slash, _ = model.partition("/")
    return prefix if slash and prefix in PROVIDERS else None


def require_litellm(where: str, provider: str) -> None:
    """Look for LiteLLM, without importing it.

    Raises:
        ConfigError: It is not installed.
    """
    if importlib.util.find_spec("litellm") is None:
        raise ConfigError(
            f"{where}: models of provider {provider!r} are called through LiteLLM, which is not "
            f"installed. Run: {install_line('agl-gateway[litellm]')}"
        )


async def ask(backend: "Backend", exchange: Exchange, path: str) -> "ProviderAnswer":
    """Make a call.

    Args:
        backend: Which model, and LiteLLM's parameters.
        exchange: The call.
        path: What is called; only chat completions can be.

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
    backend.in_flight += 1
    try:
        answer = await litellm.acompletion(
            **{**fields, **(backend.provider_parameters or {})}, num_retries=0, max_retries=0
        )
    except litellm.exceptions.APIConnectionError as error:
        backend.in_flight -= 1
        raise ConnectionError(_message(error)) from None
    except Exception as error:
        status = getattr(error, "status_code", None)
        if not isinstance(status, int) or status < 400:
            backend.in_flight -= 1
            raise
        headers = getattr(getattr(error, "response", None), "headers", None) or {}
        return ProviderAnswer(backend, status, error_body(status, _message(error)), None, headers)
    except BaseException:
        backend.in_flight -= 1
        raise
    if exchange.is_stream:
        return ProviderAnswer(backend, 200, b"", answer)
    return ProviderAnswer(backend, 200, dumps(answer.model_dump(exclude_none=True)), None)


class ProviderAnswer:
    """What LiteLLM brings, in the form in which an OpenAI-compatible server would send it.

    Args:
        backend: Whose load it is, until ``close``.
        status: HTTP status.
        body: If it is whole.
        stream: LiteLLM's chunks, if it is a stream.
        headers: Of the provider.
    """

    def __init__(
        self,
        backend: "Backend",
        status: int,
        body: bytes,
        stream: Any,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._backend = backend
        self._body = body
        self._stream = stream
        self.status = status
        kind = "application/json" if stream is None else "text/event-stream"
        self.headers: Mapping[str, str] = {**dict(headers or {}), "content-type": kind}

    async def read(self) -> bytes:
        return self._body

    async def chunks(self) -> AsyncIterator[bytes]:
        from agl_gateway.upstream import BrokenOffError

        try:
            async for chunk in self._stream:
                yield b"data: " + dumps(chunk.model_dump(exclude_none=True)) + b"\n\n"
        except Exception as error:
            raise BrokenOffError(_message(error)) from None
        finally:
            # Also when the agent has gone: the provider need not go on.
            await self._stream.aclose()
        yield b"data: [DONE]\n\n"

    def close(self) -> None:
        self._backend.in_flight -= 1


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
