"""``environment: {type: openenv, ...}``: an agent that has an OpenEnv server for each rollout."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from copy import copy
from functools import partial
from inspect import signature
from traceback import format_exc
from typing import Annotated, Any

from annotated_types import Ge, Gt

from agl.agent.base import LitAgent
from agl.errors import ConfigError
from agl.plugins.build import import_attribute
from agl.runner.report import SandboxedAgentError
from agl.types import Failure, NamedResources, Rollout
from agl.utils.text import describe
from agl_processes.sandbox_limits import CLEANUP_SECONDS, SandboxLimits
from agl_runs.environments import Environment

PROVIDERS = {"docker": "LocalDockerProvider", "uv": "UVProvider"}
WAIT_SECONDS, START_SECONDS, GONE_SECONDS = 1.0, 30.0, 2.0
"""How long one wait for a server takes, how long a container may take to start (OpenEnv's own
default), and how long a server may take to show that it is still there."""
logger = logging.getLogger("agl.sandbox")


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
            what a container is made of, and the rest are options of the provider, or of its start.
        starts_per_minute: Most servers that start in a minute on this machine.
        price_per_hour: Price of one server; each rollout has its cost as ``sandbox.cost``.
        budget: What all servers of a run on this machine may cost, except those whose runner is
            killed; then no more start, and rollouts fail as by infrastructure. Needs a price.

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
        method: Any = type(inner).rollout_method(made, rollout.mode)
        async with limits.sandbox(rollout), _server(make) as url:
            return await method({**task, "openenv": url}, resources, rollout)

    made = copy(inner)
    made.cancel_seconds, made.rollout_method = CLEANUP_SECONDS, lambda mode: roll
    return Environment(made)


def _provider(type: str, image: str | None, **options: Any) -> tuple[Any, Any, Any, float]:
    """What starts a server, waits until it answers, and stops it; for how long it may start."""
    local = {"host": "127.0.0.1"} if type == "uv" else {}  # its default is all addresses
    path = f"openenv.core.containers.runtime:{PROVIDERS.get(type, type)}"
    try:
        provider = import_attribute(type if ":" in type else path)
        known = signature(provider).parameters
        own = {key: value for key, value in {**local, **options}.items() if key in known}
        made = provider(**own)
        if hasattr(made, "start_container") != (image is not None):
            raise ValueError(f"{'no' if image else 'give an'} image")
        start = made.start if image is None else partial(made.start_container, image)
        start = partial(start, **{key: options[key] for key in options if key not in known})
        signature(start).bind()
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"OpenEnv's provider {type!r}: {error}") from error
    seconds = getattr(made, "context_timeout_s", START_SECONDS)
    if image is None:
        return start, lambda _, seconds: made.wait_for_ready(seconds), made.stop, seconds
    return start, made.wait_for_ready, made.stop_container, seconds


@asynccontextmanager
async def _server(make: Callable[[], tuple[Any, Any, Any, float]]) -> AsyncGenerator[str]:
    # A thread of its own: a stop waits for the start before it, and for no other server.
    pool = ThreadPoolExecutor(1, "agl-openenv")
    run = partial(asyncio.get_running_loop().run_in_executor, pool)
    is_agents, stop = False, bool  # nothing to stop yet
    try:
        start, wait, stop, seconds = await run(make)
        url = await run(start)
        deadline = time.monotonic() + seconds
        while True:  # in short waits, which see that its process has ended, and let it be stopped
            try:
                await run(wait, url, WAIT_SECONDS)
                break
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise
        try:
            yield url
        except Exception as error:
            if _is_connection_error(error):
                await run(wait, url, GONE_SECONDS)  # raises if the server is gone
            is_agents = True
            raise
    except Exception as error:
        if is_agents:
            raise
        about = {"message": describe(error), "traceback": format_exc()}
        failure = Failure(boundary="resources", type="openenv", **about)
        raise SandboxedAgentError(failure) from error
    finally:
        try:
            await asyncio.shield(run(stop))  # goes on after a second cancellation, too
        except Exception as error:
            logger.warning("OpenEnv's provider did not stop a server: %s", describe(error))
        pool.shutdown(wait=False)


def _is_connection_error(error: BaseException | None) -> bool:
    """Whether it says that a connection was lost: a busy server does not answer either."""
    while error is not None:
        if isinstance(error, OSError) or "Connection" in type(error).__name__:
            return True
        error = error.__cause__ or error.__context__
    return False
