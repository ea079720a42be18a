"""Resources: what an algorithm publishes and an agent uses (a prompt, the address of a model)."""

import logging
import re
from collections.abc import Mapping
from functools import cache
from string import Formatter
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field

from agl.errors import ConfigError, install_line
from agl.types.records import Record

if TYPE_CHECKING:
    from agl.types.records import AttemptedRollout


logger = logging.getLogger(__name__)


class Resource(Record):
    """Base of versioned resources; ``resource_type`` tells the kinds apart on the wire."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    resource_type: Any


class LLM(Resource):
    """An OpenAI-compatible address, a model's name there, and how to sample."""

    resource_type: Literal["llm"] = "llm"  # pyright: ignore[reportIncompatibleVariableOverride]
    endpoint: str
    """Base address as an OpenAI client takes it, ending in ``/v1``."""
    model: str
    api_key: str | None = None
    sampling_parameters: dict[str, Any] = Field(default_factory=dict)

    def get_base_url(self, *args: Any, **kwargs: Any) -> str:
        """The address to give to an OpenAI client; arguments are for subclasses."""
        return self.endpoint


class ProxyLLM(LLM):
    """A model behind the gateway; each attempt has an address of its own.

    Reading ``endpoint`` is warned about, once in a process: calls to that address are recorded for
    no rollout.
    """

    resource_type: Literal["proxy_llm"] = "proxy_llm"  # pyright: ignore[reportIncompatibleVariableOverride]
    asks_for_token: bool = False
    """Whether the gateway wants a token in the address of an attempt; ours does."""
    attempt_token: str | None = Field(default=None, repr=False)
    """That token; a runner puts it here for its agent."""

    def get_base_url(self, rollout_id: str | None = None, attempt_id: str | None = None) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The address under which calls are recorded for one attempt.

        Args:
            rollout_id: The rollout, or None (with ``attempt_id`` None) for the bare, unattributed
                address.

        Raises:
            ConfigError: Only one of the two ids was given.
        """
        bare: str = self.__dict__["endpoint"]
        if rollout_id is None and attempt_id is None:
            return bare
        if not rollout_id or not attempt_id:
            raise ConfigError(
                f"ProxyLLM.get_base_url needs both ids or neither; got rollout_id={rollout_id!r}, "
                f"attempt_id={attempt_id!r}"
            )
        endpoint = bare.rstrip("/")
        suffix = "/v1" if endpoint.endswith("/v1") else ""
        if self.attempt_token is not None:
            suffix = f"/token/{self.attempt_token}{suffix}"
        return f"{endpoint.removesuffix('/v1')}/rollout/{rollout_id}/attempt/{attempt_id}{suffix}"

    def opened(self, token: str) -> "ProxyLLM":
        """The same for the one attempt of a token of role ``model``, without the gateway's key."""
        return self.model_copy(update={"attempt_token": token, "api_key": token})

    def __getattribute__(self, name: str) -> Any:
        if name == "endpoint":
            _warn_of_bare_address()
        return super().__getattribute__(name)

    def with_attempted_rollout(self, rollout: "AttemptedRollout") -> LLM:
        """The same model as a plain ``LLM`` whose address (and key) belongs to one attempt."""
        return self.of_attempt(rollout.rollout_id, rollout.attempt.attempt_id)

    def of_attempt(self, rollout_id: str | None, attempt_id: str | None) -> LLM:
        """The same, by the ids; raises as ``get_base_url`` does."""
        return LLM(
            endpoint=self.get_base_url(rollout_id, attempt_id),
            model=self.model,
            api_key=self.attempt_token or self.api_key,
            sampling_parameters=self.sampling_parameters,
        )


@cache
def _warn_of_bare_address() -> None:
    logger.warning(
        "ProxyLLM.endpoint was read: calls to that address are recorded for no rollout. In an "
        "agent, use llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id); where calls "
        "shall belong to none, llm.get_base_url()"
    )


_is_small_spec = re.compile(r"(?s)(?!.*\d{4})[^{}]*").fullmatch
"""No width and no precision of a thousand characters or more, and none from a value."""


class PlainNames(Formatter):
    """``str.format`` for names alone.

    With ``{task.x}`` and ``{task[x]}`` a template, which a model may have written, could reach all
    that hangs on a value, up to the modules of this process.
    """

    def parse(self, format_string: Any) -> Any:
        for literal, name, spec, conversion in super().parse(format_string):
            if name is not None and not (name.isidentifier() and _is_small_spec(spec or "")):
                shown = f"{{{name}{':' + spec if spec else ''}}}"[:80]
                raise ConfigError(
                    f"f-string template: the placeholder {shown} is not a plain name with at most "
                    "a short format, as in {price:.2f}. Give each value by a name of its own; a "
                    "literal brace is written twice"
                )
            yield literal, name, spec, conversion


class PromptTemplate(Resource):
    """A prompt with placeholders, and the engine that fills them."""

    resource_type: Literal["prompt_template"] = "prompt_template"  # pyright: ignore[reportIncompatibleVariableOverride]
    template: str
    engine: Literal["jinja", "f-string", "poml"] = "f-string"

    def format(self, **kwargs: Any) -> str:
        """Fill the placeholders. Give plain values: a Jinja template may call methods of others.

        Jinja's immutable sandbox bounds neither time nor memory.

        Raises:
            KeyError: An f-string placeholder has no value.
            ValueError: A brace stands alone, or a format does not fit its value.
            ConfigError: The engine's library is not installed, an f-string placeholder is not a
                plain name, or a Jinja template reached for what its sandbox withholds.
            jinja2.TemplateError: A Jinja template cannot be read, or a name has no value.
        """
        if self.engine == "jinja":
            return _render_jinja(self.template, kwargs)
        if self.engine == "poml":
            raise ConfigError(
                "PromptTemplate.format does not render engine 'poml'; agl_apo.render("
                "prompt_template, **values) does. Run: "
                f"{install_line('agl-apo[poml]')}. Or use 'f-string' or 'jinja'"
            )
        try:
            return PlainNames().vformat(self.template, (), kwargs)
        except KeyError as error:
            given = ", ".join(kwargs) or "nothing"
            raise KeyError(
                f"the prompt {self.template[:80]!r} asks for {error.args[0]!r}; format() was given "
                f"{given}"
            ) from None


def _render_jinja(template: str, values: Mapping[str, Any]) -> str:
    try:
        from jinja2 import StrictUndefined
        from jinja2.exceptions import SecurityError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise ConfigError(
            "PromptTemplate engine 'jinja' needs 'jinja2', which is not installed. "
            f"Run: {install_line('agl-core[jinja]')}"
        ) from None
    try:
        sandbox = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
        return sandbox.from_string(template).render(values)
    except SecurityError as error:
        raise ConfigError(f"Jinja template: {error}") from None


ResourceUnion = Annotated[LLM | ProxyLLM | PromptTemplate, Field(discriminator="resource_type")]
NamedResources = dict[str, ResourceUnion]
"""Resource name -> resource; one snapshot of everything that a rollout may use."""


class ResourcesUpdate(Record):
    """A stored snapshot of resources."""

    resources_id: str
    create_time: float
    """Unix seconds."""
    update_time: float
    """Unix seconds; the snapshot with the highest one is the latest."""
    version: int
    """1 when created, one more at each replacement."""
    resources: NamedResources
