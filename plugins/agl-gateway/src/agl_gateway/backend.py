"""``Backend``: one server that answers for a model, and how busy it is."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

from agl_gateway.budget import Price
from agl_gateway.providers import provider_of
from agl_gateway.request_changes import ForcedParameters, SystemMessages
from agl_runs.options import Count

OPENAI_URL = "https://api.openai.com/v1"


@dataclass(frozen=True)
class Settings:
    """What an entry of a model list says of every call, whichever replica answers it."""

    forced_parameters: ForcedParameters = field(default_factory=ForcedParameters)
    """Parameters that calls get whatever the agent says, by mode of the rollout."""
    price: Price | None = None
    send_seed: bool = False
    """Whether calls get a seed, from that of their rollout."""
    max_tokens: Count | None = None
    """Of an answer for which the agent sets no limit."""
    strict: bool = False
    """Whether a request is refused that cannot be translated whole."""
    system_messages: SystemMessages = "as_is"
    """What becomes of system messages after the first message."""


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
    """Calls that it is answering now."""
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


class Answer(Protocol):
    """What a backend answers, as far as it has come."""

    status: int
    headers: Mapping[str, str]

    async def read(self) -> bytes:
        """All of it.

        Raises:
            BrokenOffError: There is no more of it.
        """
        return b"".join([chunk async for chunk in self.chunks()])

    def chunks(self) -> AsyncIterator[bytes]:
        """Pieces as they arrive; raises as ``read`` does."""
        ...

    def close(self) -> None:
        """Let go of it, whether it was read or not."""
        ...
