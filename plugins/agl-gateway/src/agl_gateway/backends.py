"""The served models, out of a model list in LiteLLM's form."""

import os
import random
import time
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from agl.algorithm.gateway import ModelConfig
from agl.errors import ConfigError
from agl.plugins.schema import validate
from agl.utils.secrets import is_secret, learn
from agl_gateway import providers
from agl_gateway.backend import OPENAI_URL, Backend, Settings
from agl_gateway.providers import provider_of, require_litellm

PREFIXES = ("hosted_vllm/", "openai/")
PARAMETERS = ("model", "api_base", "api_key")
INSTEAD = {
    **dict.fromkeys(
        ("max_tokens", "seed", "stop", "temperature", "top_k", "top_p"),
        " (what every call gets is beside it: 'forced_parameters': {'all': {NAME: VALUE}})",
    ),
    **dict.fromkeys(
        ("input_cost_per_token", "output_cost_per_token"),
        " (a price is beside it, per million tokens: 'price': {'input': 1.0, 'output': 2.0})",
    ),
    **dict.fromkeys(("model_info", "rpm", "tpm"), " (leave it out: it is for LiteLLM's router)"),
}
"""Parameters of LiteLLM -> what to write."""
SLACK = 1.25
"""So much busier than the least busy replica an attempt's own may be: what it has cached of the
attempt's earlier calls is worth more than an even load."""


class Backends:
    """Which backend answers for which model name. A new list makes a new object.

    Args:
        model_list: Several entries of one name are replicas.
        previous: What this list replaces: of a backend that is in both, the load is carried over.

    Raises:
        ConfigError: An entry is incomplete or has an unknown key.
    """

    def __init__(
        self, model_list: Sequence[ModelConfig], previous: "Backends | None" = None
    ) -> None:
        self._by_name: dict[str, list[Backend]] = {}
        known = {one.key: one for one in previous.all()} if previous else {}
        for number, entry in enumerate(model_list):
            backend = _backend(entry, f"model_list[{number}]")
            backend = known.pop(backend.key, backend)
            replicas = self._by_name.setdefault(backend.model_name, [])
            replicas.append(backend)
            if backend.settings != replicas[0].settings:
                raise ConfigError(
                    f"model_list[{number}] ({backend.model_name!r}): forced_parameters, "
                    "max_tokens, price, send_seed, strict or system_messages differ from those of "
                    "another entry of this name; replicas must agree, as a call goes to any of "
                    "them"
                )

    @property
    def names(self) -> list[str]:
        """The model names, in order of the list."""
        return list(self._by_name)

    def all(self) -> list[Backend]:
        """Every backend of every model."""
        return [backend for replicas in self._by_name.values() for backend in replicas]

    def of(self, model_name: str) -> Sequence[Backend]:
        """The replicas of a model; none for an unknown name."""
        return self._by_name.get(model_name, ())

    def choose(
        self, model_name: str, attempt_id: str | None, tried: Collection[Backend] = ()
    ) -> Backend | None:
        """The replica for a call: the least busy one, and the attempt's own while loads are equal.

        Args:
            model_name: What the call asks for; None comes back for an unknown name.
            attempt_id: Whose call it is; those of one attempt go to one replica if they can.
            tried: Replicas that come into question only when there are no others.
        """
        replicas = self._by_name.get(model_name)
        if not replicas:
            return None
        if len(replicas) == 1:
            return replicas[0]
        now = time.monotonic()
        fresh = [one for one in replicas if one not in tried] or replicas
        ready = [one for one in fresh if one.rests_until <= now]
        if not ready:
            return min(fresh, key=lambda one: one.rests_until)
        least = min(one.in_flight for one in ready)
        if attempt_id:
            own = replicas[zlib.crc32(attempt_id.encode()) % len(replicas)]
            if own in ready and own.in_flight <= least * SLACK:
                return own
        return random.choice([one for one in ready if one.in_flight == least])


def _backend(entry: Mapping[str, Any], where: str) -> Backend:
    _refuse_unknown(entry, tuple(ModelConfig.__annotations__), where)
    name, params = entry.get("model_name"), entry.get("litellm_params")
    if not name or not isinstance(params, Mapping):
        raise ConfigError(
            f"{where}: expected {{'model_name': NAME, 'litellm_params': {{'model': "
            f"'hosted_vllm/NAME', 'api_base': 'http://HOST:PORT/v1'}}}}; got {dict(entry)!r}"
        )
    where = f"{where} ({name!r})"
    model = str(params.get("model") or name)
    provider = provider_of(model)
    allowed = PARAMETERS if provider is None else providers.PARAMETERS
    _refuse_unknown(params, allowed, f"{where}: litellm_params")
    params = {
        key: _from_environment(value, f"{where}: litellm_params.{key}")
        for key, value in params.items()
    }
    for key, value in params.items():
        if is_secret(key):
            learn(str(value))
    given = {key: entry[key] for key in entry.keys() - {"model_name", "litellm_params"}}
    given = {key: value for key, value in given.items() if value is not None}
    settings = Settings(**validate(Settings, given, f"{where}:"))
    if provider is not None:
        require_litellm(where, provider)
        url = f"provider {provider!r}"
        return Backend(str(name), model, url, settings=settings, provider_parameters=params)
    prefix = next((known for known in PREFIXES if model.startswith(known)), "")
    api_base, api_key = params.get("api_base"), params.get("api_key")
    if not api_base and prefix == "openai/":
        api_base = os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
        api_key = api_key or os.environ.get("OPENAI_API_KEY")
    if not api_base or urlsplit(str(api_base)).scheme not in ("http", "https"):
        raise ConfigError(
            f"{where}: litellm_params.api_base is {api_base!r}; expected the address of "
            "an OpenAI-compatible server, for example 'http://127.0.0.1:8000/v1'"
        )
    return Backend(
        model_name=str(name),
        model=model.removeprefix(prefix),
        url=f"{str(api_base).rstrip('/')}/chat/completions",
        headers={"authorization": f"Bearer {api_key}"} if api_key else {},
        settings=settings,
    )


def _from_environment(value: Any, where: str) -> Any:
    if not isinstance(value, str) or not value.startswith("os.environ/"):
        return value
    variable = value.removeprefix("os.environ/")
    if variable not in os.environ:
        raise ConfigError(f"{where} names the environment variable {variable}, which is not set")
    return os.environ[variable]


def _refuse_unknown(mapping: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    unknown = [key for key in mapping if key not in known]
    if unknown:
        why = INSTEAD.get(unknown[0], "")
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}{why}; expected {', '.join(known)}")
