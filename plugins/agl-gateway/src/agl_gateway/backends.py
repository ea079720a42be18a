"""The served models, out of a model list in LiteLLM's form."""

import os
import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from agl.errors import ConfigError
from agl.gateway import ModelConfig

OPENAI_URL = "https://api.openai.com/v1"
PREFIXES = ("hosted_vllm/", "openai/")
PARAMETERS = ("model", "api_base", "api_key")


@dataclass(frozen=True)
class Backend:
    """One server that answers for a model."""

    model_name: str
    """What agents ask for."""
    model: str
    """What the server calls it."""
    url: str
    """Where chat completions are posted."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    @property
    def takes_extensions(self) -> bool:
        """Whether vLLM's fields may be sent; OpenAI's own servers refuse what they do not know."""
        return urlsplit(self.url).hostname != urlsplit(OPENAI_URL).hostname


class Backends:
    """Which backend answers for which model name. Immutable: a new list makes a new object.

    Args:
        model_list: Several entries of one name are replicas: the calls of one attempt all go to
            the same of them, which keeps that server's prefix cache warm.

    Raises:
        ConfigError: An entry is incomplete or has an unknown key.
    """

    def __init__(self, model_list: Sequence[ModelConfig]) -> None:
        self._by_name: dict[str, list[Backend]] = {}
        for number, entry in enumerate(model_list):
            backend = _backend(entry, f"model_list[{number}]")
            self._by_name.setdefault(backend.model_name, []).append(backend)

    @property
    def names(self) -> list[str]:
        """The model names, in order of the list."""
        return list(self._by_name)

    def choose(self, model_name: str, attempt_id: str | None) -> Backend | None:
        """A backend of that model, or None for an unknown name."""
        replicas = self._by_name.get(model_name)
        if not replicas:
            return None
        if len(replicas) == 1:
            return replicas[0]
        if attempt_id is None:
            return random.choice(replicas)
        return replicas[zlib.crc32(attempt_id.encode()) % len(replicas)]


def _backend(entry: Mapping[str, Any], where: str) -> Backend:
    _refuse_unknown(entry, ("model_name", "litellm_params"), where)
    name, params = entry.get("model_name"), entry.get("litellm_params")
    if not name or not isinstance(params, Mapping):
        raise ConfigError(
            f"{where}: expected {{'model_name': NAME, 'litellm_params': {{'model': "
            f"'hosted_vllm/NAME', 'api_base': 'http://HOST:PORT/v1'}}}}; got {dict(entry)!r}"
        )
    _refuse_unknown(params, PARAMETERS, f"{where} ({name!r}): litellm_params")
    model = str(params.get("model") or name)
    prefix = next((known for known in PREFIXES if model.startswith(known)), "")
    api_base, api_key = params.get("api_base"), params.get("api_key")
    if not api_base and prefix == "openai/":
        api_base = os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
        api_key = api_key or os.environ.get("OPENAI_API_KEY")
    if not api_base or urlsplit(str(api_base)).scheme not in ("http", "https"):
        raise ConfigError(
            f"{where} ({name!r}): litellm_params.api_base is {api_base!r}; expected the address of "
            "an OpenAI-compatible server, for example 'http://127.0.0.1:8000/v1'"
        )
    if isinstance(api_key, str) and api_key.startswith("os.environ/"):
        variable = api_key.removeprefix("os.environ/")
        api_key = os.environ.get(variable)
        if api_key is None:
            raise ConfigError(
                f"{where} ({name!r}): litellm_params.api_key names the environment variable "
                f"{variable}, which is not set"
            )
    return Backend(
        model_name=str(name),
        model=model.removeprefix(prefix),
        url=f"{str(api_base).rstrip('/')}/chat/completions",
        headers={"authorization": f"Bearer {api_key}"} if api_key else {},
    )


def _refuse_unknown(mapping: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    unknown = [key for key in mapping if key not in known]
    if unknown:
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}; expected {', '.join(known)}")
