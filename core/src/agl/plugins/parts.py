"""The parts of a trainer: what each must be, where its names stand, what it is if left out."""

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from agl.agent.base import Runner
from agl.algorithm.adapter import TraceAdapter
from agl.algorithm.base import Algorithm
from agl.algorithm.gateway import Gateway
from agl.errors import ConfigError
from agl.execution.base import ExecutionStrategy
from agl.plugins.build import ComponentPlan, plan_component
from agl.plugins.registry import names_in
from agl.store.base import LightningStore
from agl.tracer.base import Tracer


class Part(NamedTuple):
    """A part of a trainer."""

    expected_type: type
    group: str | None
    default: str | None = None


PARTS: Mapping[str, Part] = {
    "algorithm": Part(Algorithm, "agl.algorithms"),
    "adapter": Part(TraceAdapter, "agl.adapters"),
    "tracer": Part(Tracer, "agl.tracers", "otel"),
    "store": Part(LightningStore, "agl.stores", "memory"),
    "strategy": Part(ExecutionStrategy, "agl.strategies"),
    "gateway": Part(Gateway, "agl.gateways", "proxy"),
    "runner": Part(Runner, None, "agl.runner:LitAgentRunner"),
}
OPTIONS: Mapping[str, str] = {"port": "server_port", "runners": "n_runners"}
"""What a user writes -> the option of a part, if that has another name."""


def default_strategy() -> str:
    """``cs``, processes, which agl-server brings; without it ``shm``, threads."""
    return "cs" if "cs" in names_in("agl.strategies") else "shm"


def plan_part(
    name: str,
    spec: Any,
    *,
    where: str = "",
    default: str | None = None,
    said_by: str = "Trainer",
    said: Mapping[str, Any] | None = None,
    **optional: Any,
) -> ComponentPlan[Any]:
    """Find, load and check a part of a trainer; see ``plan_component``.

    Args:
        spec: How the part is given; None takes its default.
        where: What error messages begin with; the part's name if left out.
        said_by: Who says what is in ``said``, for messages.
        said: Options that the part gets, as the user wrote them, see ``OPTIONS``; the part must not
            say something else. None says nothing.
        optional: Options that the part gets unless it says something else.

    Raises:
        ConfigError: The part says something else than ``said``, or its options are wrong.
        PluginError: A component is unknown or does not load.
    """
    part = PARTS[name]
    said = {word: value for word, value in (said or {}).items() if value is not None}
    wanted = {OPTIONS.get(word, word): value for word, value in said.items()}
    if name == "store" and isinstance(spec, str) and "://" in spec:
        scheme, rest = spec.split("://", 1)
        is_server = scheme.lower() not in ("postgres", "postgresql")
        address = {"server_address": spec} if is_server else {"url": f"postgresql://{rest}"}
        spec = {"type": "client" if is_server else "postgres", **address}
    elif name == "store" and isinstance(spec, str) and ("/" in spec or spec.endswith(".db")):
        hint = f"give {{type: sqlite, path: {spec}}}, or in Python SqliteLightningStore({spec!r})"
        raise ConfigError(f"{where or name}: {spec!r} is no name of a store; {hint}")
    plan = plan_component(
        spec,
        group=part.group,
        expected_type=part.expected_type,
        default=default or part.default or (default_strategy() if name == "strategy" else None),
        optional_defaults={**optional, **wanted},
        where=where or name,
    )
    is_class = inspect.isclass(plan.target)
    for word, option in zip(said, wanted, strict=True):
        chosen = plan.options.get(option) if is_class else getattr(plan.target, option, None)
        if chosen != said[word]:
            has = f"no {option}" if chosen is None else f"{option}={chosen}"
            raise ConfigError(
                f"{said_by}: {word}={said[word]}, and the {name} given has {has}; leave {word} "
                f"out, or give another {name}"
            )
    return plan


def adapter_maker(
    adapter: TraceAdapter[Any] | None, algorithm: Algorithm, agent_match: str | None
) -> Callable[[], TraceAdapter[Any]]:
    """A function that gives the adapter of a run: the one given, or the one the algorithm wants.

    The latter is built at its first use. ``agent_match`` is the agent's ``trained_agents``. A
    ``ConfigError`` says that adapter, algorithm and agent do not fit each other.
    """
    if adapter is not None:
        name, match = type(adapter).__name__, getattr(adapter, "agent_match", None)
        if algorithm.adapter_options:
            given = ", ".join(map(repr, algorithm.adapter_options))
            raise ConfigError(
                f"algorithm {type(algorithm).__name__!r} was given {given} for the adapter that it "
                f"asks for, and there is an adapter ({name}) beside it. Give {given} to the "
                "adapter, or leave the adapter out"
            )
        if agent_match not in (None, found := getattr(match, "pattern", match)):
            raise ConfigError(
                f"Trainer: the agent says trained_agents={agent_match!r}, and the adapter ({name}) "
                f"has agent_match={found!r}. Give the adapter agent_match={agent_match!r}, or "
                "leave one of the two out"
            )
        algorithm.check_adapter(adapter)
        return lambda: adapter
    match = {} if agent_match is None else {"agent_match": agent_match}
    options, default = {**algorithm.adapter_options, **match}, algorithm.default_adapter
    return cache(lambda: plan_part("adapter", options, default=default).build())
