"""The contract of a gateway: the address that agents call, and that records what they did."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from agl.errors import GatewayError
from agl.semconv import MODEL_CALL_SPAN, ModelCallAttributes
from agl.types import LLM, AttemptedRollout, NamedResources, Span

if TYPE_CHECKING:
    from agl.store.base import LightningStore


def is_gateway_span(span: Span) -> bool:
    """Whether a span is one that a gateway writes, one per model call, and none that looks so."""
    return (
        span.name == MODEL_CALL_SPAN
        and ModelCallAttributes.OPERATION in span.attributes
        and span.writer in (None, "gateway")
        and not span.late
    )


class ModelConfig(TypedDict):
    """A served model and the backend that answers for it, in LiteLLM's form."""

    model_name: str
    """What agents ask for."""
    litellm_params: dict[str, Any]
    """``model`` (as ``hosted_vllm/NAME``), ``api_base`` (or several), perhaps ``api_key``."""
    forced_parameters: NotRequired[dict[str, dict[str, Any]]]
    """By mode, or ``all``: fields that requests get; None takes one out. Not LiteLLM's."""
    send_seed: NotRequired[bool]
    """Whether calls whose agent gives no ``seed`` get that of their place. Not LiteLLM's."""
    max_tokens: NotRequired[int]
    """Of an answer for which the agent sets no limit. Not LiteLLM's."""
    strict: NotRequired[bool]  # whether requests are refused of which something must be left out
    system_messages: NotRequired[str]
    """After the first message: ``as_is``, ``merge``, ``as_user`` or ``refuse``. Not LiteLLM's."""
    price: NotRequired[dict[str, float]]
    """``input`` and ``output``: what a million tokens cost, for budgets. Not LiteLLM's."""


class GatewayClient(ABC):
    """What a runner asks the gateways that its attempts call; one for each runner."""

    @abstractmethod
    async def open(
        self, store: "LightningStore", rollout: AttemptedRollout, resources: NamedResources
    ) -> NamedResources:
        """The resources for this attempt, with addresses that this attempt alone may call."""

    @abstractmethod
    async def wait_for_earlier_calls(
        self, rollout: AttemptedRollout, spans: Sequence[Span], *, at_end: bool = False
    ) -> tuple[int, bool]:
        """Wait until every model call is stored that ended before the first of these spans.

        The spans are in the order of their ends. ``at_end``: the agent makes no more calls.

        Returns:
            How many spans precede the next call (at the end, one more if none came), and if surely.
        """

    @abstractmethod
    async def end(self, rollout: AttemptedRollout, *, patient: bool = True) -> GatewayError | None:
        """Return when the calls of this attempt are stored, or why they may not all be.

        ``patient`` waits for a gateway that nobody finds, as it may be about to restart.
        """


class Gateway(ABC):
    """Forwards model calls and records each as a span of the attempt that made it."""

    @property
    def num_unattributed(self) -> int:
        """Calls since the last start to an address of no rollout; they are recorded nowhere."""
        return 0

    @abstractmethod
    def get_store(self) -> "LightningStore | None":
        """Where calls are recorded."""

    @abstractmethod
    def set_store(self, store: "LightningStore") -> None:
        """Record calls here from now on."""

    @abstractmethod
    def update_model_list(self, model_list: list[ModelConfig]) -> None:
        """Replace the user's list of served models; what ``add_model`` added stays.

        Raises:
            ConfigError: The list is wrong, or names an added model; the old one stays.
        """

    @abstractmethod
    def add_model(self, entry: ModelConfig) -> None:
        """Serve one model more, for an algorithm, until its ``remove_model``.

        Raises:
            ConfigError: The entry is wrong, or a model of this name is served already.
        """

    @abstractmethod
    def remove_model(self, model_name: str) -> None:
        """Serve an added model no more, if there is one; calls in flight end in peace."""

    @abstractmethod
    def check_free(self, model_name: str) -> None:
        """Raise the ``ConfigError`` that ``add_model`` would raise for this name."""

    @abstractmethod
    async def start(self) -> None:
        """Serve; returns when requests are taken."""

    @abstractmethod
    async def stop(self) -> None:
        """Write what is pending and end."""

    @abstractmethod
    async def restart(self) -> None:
        """Stop if running, then start on the same port."""

    @abstractmethod
    def is_running(self) -> bool:
        """Whether requests are taken."""

    @abstractmethod
    async def flush(self) -> None:
        """Return when every call answered so far is stored."""

    @abstractmethod
    async def pause(self, model: str | None = None, *, refuse: bool = False) -> None:
        """Let no new calls to a model (None: to any) through until ``resume``.

        Calls in flight go on. The others wait; ``refuse`` answers them with 503 and
        ``Retry-After``.
        """

    @abstractmethod
    async def resume(self, model: str | None = None) -> None:
        """Let calls through again; None ends every pause."""

    @abstractmethod
    async def drain(self, model: str | None = None) -> None:
        """Return when no call is in flight, to a model or (None) to any.

        After ``pause``; then the weights behind the model can be replaced.
        """

    @abstractmethod
    def spent_budget(self) -> str | None:
        """Which limit of the run is used up, as ``calls 100 of 100``; all calls are refused then.

        None while there is budget.
        """

    @abstractmethod
    def as_resource(
        self,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        model: str | None = None,
        sampling_parameters: dict[str, Any] | None = None,
    ) -> LLM:
        """The gateway as a resource: a ``ProxyLLM``, or with both ids an ``LLM`` of that attempt.

        Args:
            rollout_id: With ``attempt_id``: bind the address to one attempt.
            attempt_id: See ``rollout_id``.
            model: Which served model; None takes the only one of the user's list, and if that is
                empty the only added one.
            sampling_parameters: Stored in the resource for the agent to use.
        """
