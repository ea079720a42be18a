"""The states of the model that is trained."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agl.algorithm.gateway import ModelConfig

if TYPE_CHECKING:
    from asyncio.subprocess import Process

MODEL_NAME = "policy"
"""What the gateway calls the model that is trained."""


@dataclass(frozen=True)
class Version:
    """One state of the model that is trained."""

    number: int
    """0 is the model that the run was given."""
    ref: str
    """Where it is: a folder, a name on a hub, an id at a provider. It outlives the process."""
    metrics: dict[str, Any] = field(default_factory=dict[str, Any])
    """Of the training that made it; JSON values."""


async def _may_answer() -> str | None:
    """Of a server whose end nobody here would see."""


@dataclass(frozen=True)
class Served:
    """A version that answers requests."""

    litellm_params: dict[str, Any]
    """For the gateway: ``model`` (as ``hosted_vllm/NAME``), ``api_base``, perhaps ``api_key``."""
    why_silent: Callable[[], Awaitable[str | None]] = _may_answer
    """Says why it answers no more, where it was killed, say; None as long as it may answer."""
    process: "Process | None" = None
    """Of its server, if that is a child of this one."""


@dataclass(frozen=True)
class ServedModel:
    """A model that agents can call."""

    name: str
    """What the gateway calls it."""
    resource: str
    """Name of the resource that an agent gets."""
    litellm_params: Mapping[str, Any]
    """Of its server."""
    sampling: Mapping[str, dict[str, Any]]
    """Mode -> parameters that agents are told; ``max_tokens`` holds where they set no limit."""
    forced: Mapping[str, Any]
    """Parameters, besides the temperature, that they get whatever they ask for."""

    def entry(self) -> ModelConfig:
        """As a gateway takes it."""
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
