"""``environment: {type: openenv, ...}``: an agent that has an OpenEnv server for each rollout."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from copy import copy
from functools import partial
from typing import Annotated, Any

from annotated_types import Ge, Gt

from agl.agent.base import LitAgent
from agl.errors import ConfigError
from agl.plugins.build import import_attribute
from agl.runner.report import SandboxedAgentError
from agl.types import Failure, NamedResources, Rollout
from agl.utils.text import describe
from agl_processes.sandbox_limits import CLEANUP_SECONDS, SandboxLimits, finish
from agl_runs.environments import Environment

PROVIDERS = {"docker": "LocalDockerProvider", "uv": "UVProvider"}


def openenv(
    agent: str,
    server: dict[str, Any],
    starts_per_minute: Annotated[float, Gt(0)] | None = None,
    price_per_hour: Annotated[float, Ge(0)] = 0.0,
    budget: Annotated[float, Gt(0)] | None = None,
) -> Environment:
    """An agent with an OpenEnv server of its own for each rollout; it has the address in its task.

    Args:
        agent: ``module:attribute``, a coroutine. Its tasks are objects, to which ``openenv`` is
            added: the address, as OpenEnv's clients take it for ``base_url``.
        server: ``type`` is OpenEnv's provider (``docker``, ``uv`` or ``module:Class``), ``image``
            what a container is made of, and the rest are options of the provider.
        starts_per_minute: Most that are made in a minute on this machine.
        price_per_hour: Of one; each rollout has its cost as ``sandbox.cost``.
        budget: What all of a run may cost on this machine, but for those whose runner is killed;
            then no more are made, and rollouts fail as by infrastructure. Needs a price.

    Raises:
        ConfigError: There is no such agent or provider, or the provider does not work here.
    """
    inner = import_attribute(agent)
    if not isinstance(inner, LitAgent) or not inner.is_async():
        raise ConfigError(f"{agent!r} is no agent that is a coroutine, as OpenEnv's clients are")
    make = partial(_provider, **{"type": "", "image": None, **server})
    limits = SandboxLimits(starts_per_minute, price_per_hour, budget)
    make()  # what does not work here says so before a run

    async def roll(task: dict[str, Any], resources: NamedResources, rollout: Rollout) -> Any:
        method: Any = inner.rollout_method(rollout.mode)
        async with limits.sandbox(rollout), _server(make) as url:
            return await method({**task, "openenv": url}, resources, rollout)

    made = copy(inner)
    made.cancel_seconds, made.rollout_method = CLEANUP_SECONDS, lambda mode: roll
    return Environment(made)


def _provider(type: str, image: str | None, **options: Any) -> tuple[Any, Any, Any]:
    """What starts a server, waits until it answers, and stops it."""
    local = {"host": "127.0.0.1"} if type == "uv" else {}  # its default is all addresses
    path = f"openenv.core.containers.runtime:{PROVIDERS.get(type, type)}"
    try:
        made = import_attribute(type if ":" in type else path)(**{**local, **options})
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"OpenEnv's provider {type!r}: {error}") from error
    if hasattr(made, "start_container") != (image is not None):
        raise ConfigError(f"OpenEnv's provider {type!r}: {'no' if image else 'give an'} image")
    if image is None:
        return made.start, lambda _, *seconds: made.wait_for_ready(*seconds), made.stop
    return partial(made.start_container, image), made.wait_for_ready, made.stop_container


@asynccontextmanager
async def _server(make: Callable[[], tuple[Any, Any, Any]]) -> AsyncGenerator[str]:
    start, wait, stop = await asyncio.to_thread(make)
    is_agents = False
    try:
        url = await finish(asyncio.to_thread(start))
        await asyncio.to_thread(wait, url)
        try:
            yield url
        except Exception:
            await asyncio.to_thread(wait, url, 2.0)  # raises if the server is gone
            is_agents = True
            raise
    except Exception as error:
        if is_agents:
            raise
        failure = Failure(boundary="resources", type="openenv", message=describe(error))
        raise SandboxedAgentError(failure) from error
    finally:
        await asyncio.to_thread(stop)  # which a cancellation does not end
