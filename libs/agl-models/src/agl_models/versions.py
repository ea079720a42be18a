"""The states of the model that is trained, and how a gateway serves one beside other models."""

import contextlib
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agl.algorithm.gateway import Gateway, ModelConfig
from agl.store.base import LightningStore

MODEL_NAME = "policy"
"""What the gateway calls the model that is trained."""
WHOLE_SOFTMAX: Mapping[str, Any] = {
    "top_p": 1.0,
    **dict.fromkeys(
        ("top_k", "min_p", "top_a", "typical_p", "epsilon_cutoff", "eta_cutoff", "min_tokens")
    ),
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "repetition_penalty")),
    **dict.fromkeys(("length_penalty", "logit_bias", "bad_words", "allowed_token_ids")),
    **dict.fromkeys(("ignore_eos", "use_beam_search", "best_of")),
}
"""Forced parameters, besides a temperature, of a model that is trained on recorded
log-probabilities: an answer must be drawn from the distribution that they are of."""


@dataclass(frozen=True)
class Version:
    """One state of the model that is trained."""

    number: int
    """0 is the model that the run was given."""
    ref: str
    """Where it is: a folder, a name on a hub, an id at a provider. It outlives the process."""
    metrics: dict[str, Any] = field(default_factory=dict[str, Any])
    """Metrics of the training that made it; JSON values."""


async def _may_answer() -> str | None:
    """Say of a server whose end nobody here would see that it may answer."""


@dataclass(frozen=True)
class Served:
    """A version that answers requests."""

    litellm_params: dict[str, Any]
    """The gateway's: ``model`` (as ``hosted_vllm/NAME``), ``api_base``, perhaps ``api_key``."""
    why_silent: Callable[[], Awaitable[str | None]] = _may_answer
    """Says why it answers no more, where it was killed, say; None as long as it may answer."""
    process: Process | None = None
    """The server's process, if it is a child of this one."""


@dataclass(frozen=True)
class ServedModel:
    """A model that agents can call."""

    name: str
    """What the gateway calls it."""
    resource: str
    """Name of the resource that an agent gets."""
    litellm_params: Mapping[str, Any]
    """Those of the version that is served."""
    sampling: Mapping[str, dict[str, Any]]
    """Mode -> parameters that agents are told; ``max_tokens`` holds where they set no limit."""
    forced: Mapping[str, Any]
    """Parameters, besides the temperature, that they get whatever they ask for."""

    def entry(self) -> ModelConfig:
        """The model as a gateway takes it."""
        entry: ModelConfig = {
            "model_name": self.name,
            "litellm_params": dict(self.litellm_params),
            "send_seed": True,
            "forced_parameters": {
                mode: {**self.forced, "temperature": told["temperature"]}
                for mode, told in self.sampling.items()
            },
        }
        if (max_tokens := self.sampling["train"].get("max_tokens")) is not None:
            entry["max_tokens"] = max_tokens
        return entry


@contextlib.asynccontextmanager
async def model_served(
    gateway: Gateway, entry: ModelConfig, store: LightningStore
) -> AsyncGenerator[None]:
    """Have a gateway serve one model more while this lasts, and leave it as it was.

    One that ran before goes on running; one that did not is started, and stopped in the end.

    Args:
        gateway: The user's or the trainer's.
        entry: The model.
        store: Where calls are recorded.

    Raises:
        ConfigError: The entry is wrong, or a model of this name is served already; that one stays.
    """
    gateway.set_store(store)
    gateway.add_model(entry)
    own = not gateway.is_running()
    try:
        if own:
            await gateway.start()
        yield
    finally:
        gateway.remove_model(entry["model_name"])
        if own and gateway.is_running():
            await gateway.stop()
