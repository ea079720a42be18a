"""The served models, out of a model list in LiteLLM's form, and the servers behind them."""

import os
import random
import time
import zlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from agl.algorithm.gateway import ModelConfig
from agl.errors import ConfigError
from agl.plugins.schema import validate
from agl.utils.secrets import is_secret, learn
from agl_gateway import providers
from agl_gateway.budget import Price
from agl_gateway.providers import provider_of, require_litellm
from agl_gateway.request_changes import ForcedParameters, SystemMessages
from agl_runs.options import Count

OPENAI_URL = "https://api.openai.com/v1"
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
SLACK, SLACK_CALLS = 1.25, 4
"""By this factor, and so many calls, the replica of an attempt may be busier than the least busy
one: what it has cached of the attempt's earlier calls is worth more than an even load."""
MIX = 0x9E3779B1
"""Knuth's multiplicative hash."""


@dataclass(frozen=True)
class Settings:
    """What a ``ModelConfig`` says of every call, whichever replica answers it."""

    forced_parameters: ForcedParameters = field(default_factory=ForcedParameters)
    price: Price | None = None
    send_seed: bool = False
    max_tokens: Count | None = None
    strict: bool = False
    system_messages: SystemMessages = "as_is"


@dataclass(eq=False)
class Backend:
    """One server that answers for a model."""

    model_name: str
    """What agents ask for."""
    model: str
    """What the server calls it."""
    url: str
    """Where chat completions are posted."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    settings: Settings = field(default_factory=Settings)
    provider_parameters: Mapping[str, Any] | None = field(default=None, repr=False)
    """Of a model that is called through LiteLLM: its arguments. None: an OpenAI-compatible one."""
    in_flight: int = 0
    rests_until: float = 0.0
    """``time.monotonic()`` before which it is better left alone."""
    rest_seconds: float = 0.0
    """How long it rests now; twice as long after the next failure."""

    @property
    def key(self) -> str:
        """What tells it from other backends."""
        address = (self.url, self.headers, self.provider_parameters)
        return repr((self.model_name, self.model, address, self.settings))

    @property
    def provider(self) -> str:
        """OpenTelemetry's name of whose API it speaks."""
        return "openai" if self.provider_parameters is None else str(provider_of(self.model))

    @property
    def takes_extensions(self) -> bool:
        """Whether vLLM's fields may be sent; OpenAI's own servers refuse what they do not know.

        So do Azure's and others' that serve OpenAI's interface under ``/openai/v1``.
        """
        if self.provider_parameters is not None:
            return False
        address = urlsplit(self.url)
        return address.hostname != urlsplit(OPENAI_URL).hostname and not address.path.startswith(
            "/openai/"
        )


@dataclass(slots=True)
class Answer:
    """What a backend answers, as far as it has come."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]
    """Pieces as they arrive; a ``BrokenOffError`` where there are no more of them."""
    close: Callable[[], object] = lambda: None
    """Lets go of it, whether it was read or not."""

    async def read(self) -> bytes:
        """All of it; raises as ``chunks`` does."""
        return b"".join([chunk async for chunk in self.chunks])


class Backends:
    """Which backend answers for which model name.

    Two lists are served as one, that of the user and what algorithms add; neither side can take
    away what is the other's.

    Args:
        model_list: The user's; several entries of one name are replicas.
        complete: Adds what has to be served besides, for a replay.

    Raises:
        ConfigError: An entry is incomplete or has an unknown key.
    """

    def __init__(
        self,
        model_list: Sequence[ModelConfig] = (),
        complete: Callable[[list[ModelConfig]], list[ModelConfig]] = list,
    ) -> None:
        self._complete = complete
        self._listed: list[ModelConfig] = []
        self._added: dict[str, ModelConfig] = {}
        self._by_name: dict[str, list[Backend]] = {}
        self.replace(model_list)

    def replace(self, model_list: Sequence[ModelConfig]) -> None:
        """Take another list of the user's; if it is wrong, the old one stays."""
        for number, entry in enumerate(model_list):
            if entry.get("model_name") in self._added:
                raise ConfigError(
                    f"model_list[{number}]: an algorithm serves the model that it trains as "
                    f"{entry['model_name']!r} now. Give this entry another model_name"
                )
        self._serve(list(model_list), self._added)

    def add(self, entry: ModelConfig) -> None:
        self.check_free(entry["model_name"])
        self._serve(self._listed, {**self._added, entry["model_name"]: entry})

    def remove(self, name: str) -> None:
        self._serve(self._listed, {n: entry for n, entry in self._added.items() if n != name})

    def check_free(self, name: str) -> None:
        """Refuse a name that is taken.

        Raises:
            ConfigError: It says by whom, and what to do.
        """
        if name in self._added:
            raise ConfigError(
                f"LLMProxy: another algorithm serves its model {name!r} here now; give each "
                "algorithm a proxy of its own"
            )
        if any(entry["model_name"] == name for entry in self._listed):
            raise ConfigError(
                f"LLMProxy: {name!r} stands in model_list, and the algorithm serves the model that "
                "it trains under this name. Leave the entry out, or, where it is another model, "
                "give it another model_name"
            )

    def default(self) -> str | None:
        """What is meant where none is named: the only listed model, or else the only one."""
        names = {entry["model_name"] for entry in self._listed} or set(self.names)
        return names.pop() if len(names) == 1 else None

    def _serve(self, listed: list[ModelConfig], added: dict[str, ModelConfig]) -> None:
        by_name: dict[str, list[Backend]] = {}
        known = {one.key: one for one in self.all()}  # of what stays, the load is carried over
        given = self._complete([*listed, *added.values()])
        every = [(number, one) for number, entry in enumerate(given) for one in _replicas(entry)]
        for number, entry in every:
            backend = _backend(entry, f"model_list[{number}]")
            backend = known.pop(backend.key, backend)
            replicas = by_name.setdefault(backend.model_name, [])
            replicas.append(backend)
            if backend.settings != replicas[0].settings:
                raise ConfigError(
                    f"model_list[{number}] ({backend.model_name!r}): forced_parameters, "
                    "max_tokens, price, send_seed, strict or system_messages differ from those of "
                    "another entry of this name; replicas must agree, as a call goes to any of "
                    "them"
                )
        self._by_name, self._listed, self._added = by_name, listed, added

    @property
    def names(self) -> list[str]:
        return list(self._by_name)

    def all(self) -> list[Backend]:
        return [backend for replicas in self._by_name.values() for backend in replicas]

    def of(self, model_name: str) -> Sequence[Backend]:
        """The replicas of a model; none for an unknown name."""
        return self._by_name.get(model_name, ())

    def choose(
        self, model_name: str, attempt_id: str | None, tried: Collection[Backend] = ()
    ) -> Backend | None:
        """The replica for a call: the attempt's own unless it is far busier, else the least busy.

        An attempt whose own one rests has one other (rendezvous hashing), and so again a cache.
        Those of ``tried`` only when there are no others; None for an unknown name.
        """
        replicas = self._by_name.get(model_name)
        if not replicas:
            return None
        if len(replicas) == 1:
            return replicas[0]
        now = time.monotonic()
        fresh = ([one for one in replicas if one not in tried] if tried else None) or replicas
        ready = [one for one in fresh if one.rests_until <= now]
        if not ready:
            return min(fresh, key=lambda one: one.rests_until)
        least = min([one.in_flight for one in ready])
        if not attempt_id:
            return random.choice([one for one in ready if one.in_flight == least])
        most = least * SLACK + SLACK_CALLS
        own = replicas[zlib.crc32(attempt_id.encode()) % len(replicas)]
        if own.in_flight <= most and own in ready:
            return own
        able = [one for one in ready if one.in_flight <= most]
        return max(able, key=lambda one: zlib.crc32((attempt_id + one.key).encode()) * MIX % 2**32)


def _replicas(entry: ModelConfig) -> list[ModelConfig]:
    """An entry for each address, if ``api_base`` is a list of them."""
    params: Any = entry.get("litellm_params")
    urls = params.get("api_base") if isinstance(params, Mapping) else None
    if not urls or not isinstance(urls, list):
        return [entry]
    return [{**entry, "litellm_params": {**params, "api_base": url}} for url in urls]


def _backend(entry: Mapping[str, Any], where: str) -> Backend:
    _refuse_unknown(entry, tuple(ModelConfig.__annotations__), where)
    name, params = entry.get("model_name"), entry.get("litellm_params")
    if not name or not isinstance(params, Mapping):
        raise ConfigError(
            f"{where}: expected {{'model_name': NAME, 'litellm_params': {{'model': "
            f"'hosted_vllm/NAME', 'api_base': 'http://HOST:PORT/v1'}}}}; got {sorted(entry)}"
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
