"""What an agent's script sets for its workers: rewards of tools, what is traced, retries."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import agl
from agl.errors import ConfigError
from agl.plugins.schema import validate
from agl.utils.otel import make_link_attributes
from agl_runs.options import AboveZero
from agl_service.errors import InvalidConfigError

Rule = Callable[..., float | None]
VARIABLES = {"LIGHTNING_ENABLE_AIR": "air_enabled", "LIGHTNING_MAX_RETRIES": "max_retries"}


@dataclass(frozen=True)
class RuntimeConfig:
    """What ``set_config`` takes."""

    air_enabled: bool = True
    """Whether the rules of ``air`` give rewards; by default as ``LIGHTNING_ENABLE_AIR`` says."""
    max_retries: int | None = None
    """How often a rollout is tried again whose agent failed or took too long; by default as
    ``LIGHTNING_MAX_RETRIES`` says, and without that as the server says."""
    timeout: AboveZero | None = None
    """Seconds that a call of the agent may take; None as the server says."""


@dataclass
class Air:
    """Automatic intermediate rewarding: decorators of functions that reward what tools did.

    None from a function means no reward. A later function of a kind replaces the earlier one.
    """

    rules: dict[str, Rule] = field(default_factory=dict[str, Rule])

    def on_tool_success(self, rule: Rule) -> Rule:
        """A function of ``(tool_name, output)``, for a tool that ended well."""
        self.rules["on_tool_success"] = rule
        return rule

    def on_tool_failure(self, rule: Rule) -> Rule:
        """A function of ``(tool_name, error)``."""
        self.rules["on_tool_failure"] = rule
        return rule

    def on_code_execution(self, rule: Rule) -> Rule:
        """A function of ``(code, result, exit_code)``, for tools that run code."""
        self.rules["on_code_execution"] = rule
        return rule

    def reward(self) -> None:
        """Give the rewards of the rollout that runs, each to the call which asked for the tool."""
        tracer = agl.get_active_tracer()
        if tracer is None or not self.rules or not runtime_config().air_enabled:
            return
        rules = agl.TraceToRows(credit="per_call", air={**self.rules}).air
        assert rules is not None
        for reward in rules.rewards(tracer.get_last_trace()):
            link = make_link_attributes({"span_id": str(reward.parent_id)})
            agl.emit_annotation({**reward.attributes, **link})


air = Air()
_set: dict[str, Any] = {}
traced = {"tracer": "otel"}
"""What the workers trace with."""


def set_config(config: Mapping[str, Any]) -> None:
    """Change what ``RuntimeConfig`` has; an ``InvalidConfigError`` for what it has not."""
    _set.update(_checked(config, "set_config"))


def runtime_config() -> RuntimeConfig:
    """What holds now."""
    named: dict[str, Any] = {}
    for name in VARIABLES.keys() & os.environ:
        named |= _checked({VARIABLES[name]: os.environ[name]}, f"{name}, as")
    return RuntimeConfig(**{**named, **_set})


def _checked(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    try:
        return validate(RuntimeConfig, config, where)
    except ConfigError as error:
        raise InvalidConfigError(str(error)) from None


def auto_instrument(
    trace_llm_calls: bool = True, trace_tool_calls: bool = True, trace_context: bool = True
) -> None:
    """Record what libraries of agents do, with the instrumentations of OpenInference.

    Args:
        trace_llm_calls: The server records calls of its model in any case, as it learns from them.
        trace_tool_calls: False instruments no library: tools are then recorded that are an
            ``agl.operation``, or that their library traces by itself.
        trace_context: Whether inputs and outputs are recorded, which rules of ``air`` get.

    Raises:
        InvalidConfigError: Calls of the model shall not be recorded.
    """
    if not trace_llm_calls:
        raise InvalidConfigError(
            "trace_llm_calls=False: the server learns from calls; leave it at True"
        )
    traced["tracer"] = "openinference" if trace_tool_calls else "otel"
    for what in ("INPUTS", "OUTPUTS"):
        os.environ[f"OPENINFERENCE_HIDE_{what}"] = str(not trace_context).lower()
