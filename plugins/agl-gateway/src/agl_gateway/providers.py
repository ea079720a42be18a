"""The providers (Anthropic, Azure, Bedrock ...) that LiteLLM's library is used for, by name."""

import importlib.util

from agl.errors import ConfigError, install_line

PROVIDERS = (
    *("ai21", "anthropic", "azure", "azure_ai", "bedrock", "cerebras", "cohere"),
    *("cohere_chat", "databricks", "deepinfra", "deepseek", "fireworks_ai", "gemini"),
    *("github", "groq", "huggingface", "mistral", "nvidia_nim", "ollama", "ollama_chat"),
    *("openrouter", "perplexity", "replicate", "sagemaker", "sagemaker_chat", "sambanova"),
    *("together_ai", "vertex_ai", "watsonx", "xai"),
)
"""First part of ``litellm_params.model`` for which LiteLLM is used."""

PARAMETERS = (
    *("model", "api_base", "api_key", "api_version", "aws_access_key_id"),
    *("aws_bedrock_runtime_endpoint", "aws_profile_name", "aws_region_name", "aws_role_name"),
    *("aws_secret_access_key", "aws_session_name", "aws_session_token"),
    *("aws_web_identity_token", "azure_ad_token", "client_id", "client_secret"),
    *("extra_headers", "organization", "tenant_id", "timeout", "vertex_credentials"),
    *("vertex_location", "vertex_project"),
)
"""What ``litellm_params`` may hold for them."""


def provider_of(model: str) -> str | None:
    """Which provider LiteLLM is asked for, or None for an OpenAI-compatible server."""
    prefix, slash, _ = model.partition("/")
    return prefix if slash and prefix in PROVIDERS else None


def require_litellm(where: str, provider: str) -> None:
    """Look for LiteLLM, without importing it; a ``ConfigError`` if it is not installed."""
    if importlib.util.find_spec("litellm") is None:
        raise ConfigError(
            f"{where}: models of provider {provider!r} are called through LiteLLM, which is not "
            f"installed. Run: {install_line('agl-gateway[litellm]')}"
        )
