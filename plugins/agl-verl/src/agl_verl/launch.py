"""Starts verl from the algorithm's process, and waits for its end."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from agl.errors import AglError, AlgorithmError
from agl_verl.link import Handler, open_link, serve
from agl_verl.preflight import check_cluster

logger = logging.getLogger("agl.verl")


class _Starter:
    """What ``run_ppo`` takes for a class of task runners; it is asked for one when Ray is up."""

    def __init__(
        self, config: Any, classes: tuple[Any, Any], on_start: Callable[[Any], None]
    ) -> None:
        self._config, self._classes, self._on_start = config, classes, on_start
        self._actor_options: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._stopped = False
        self._actor: Any = None

    def stop(self) -> None:
        """End the task runner; one that has not begun does not begin."""
        import ray

        with self._lock:
            self._stopped = True
            if self._actor is not None:
                with contextlib.suppress(Exception):
                    ray.kill(self._actor)

    def options(self, **options: Any) -> "_Starter":
        """As verl calls it, to profile the task runner."""
        self._actor_options = options
        return self

    def remote(self) -> Any:
        """Start the task runner and the link to it."""
        import ray

        from agl_verl.task_runner import AglTaskRunner

        check_cluster(self._config, ray.cluster_resources())
        link = open_link()
        actor_class: Any = AglTaskRunner
        with self._lock:
            if self._stopped:
                raise AlgorithmError("the run was stopped before verl had started")
            self._actor = actor_class.options(**self._actor_options).remote()
        self._on_start(link)
        # As `run_ppo` calls it: `runner.run.remote(config)`.
        run = SimpleNamespace(
            remote=lambda config: self._actor.run.remote(config, link, *self._classes)
        )
        return SimpleNamespace(run=run)


async def launch(config: Any, classes: tuple[Any, Any], handler: Handler) -> None:
    """Run verl to the end, answering its questions meanwhile.

    ``classes`` are the options ``trainer_cls`` and ``daemon_cls``.

    Raises:
        ConfigError: The cluster is too small.
        AlgorithmError: verl failed; the message is its own, the cause is attached.
    """
    import ray

    loop = asyncio.get_running_loop()
    started: asyncio.Future[Any] = loop.create_future()
    was_connected = ray.is_initialized()

    def on_start(link: Any) -> None:
        loop.call_soon_threadsafe(started.set_result, link)

    starter = _Starter(config, classes, on_start)
    running = asyncio.ensure_future(asyncio.to_thread(_run, config, starter))
    serving: asyncio.Task[None] | None = None
    try:
        await asyncio.wait([running, started], return_when=asyncio.FIRST_COMPLETED)
        if started.done():
            serving = asyncio.create_task(serve(started.result(), handler))
            await asyncio.wait([running, serving], return_when=asyncio.FIRST_COMPLETED)
            if serving.done() and not running.done():
                raise AlgorithmError("the line to verl broke") from serving.exception()
        await running
    finally:
        if serving is not None:
            serving.cancel()
            await asyncio.wait([serving])
        if not running.done():
            await asyncio.to_thread(starter.stop)
        await asyncio.wait([running])
        running.exception()  # it is told already, or we were cancelled
        if not was_connected:
            await asyncio.to_thread(ray.shutdown)


def _run(config: Any, starter: _Starter) -> None:
    from ray.exceptions import RayError, RayTaskError
    from verl.trainer.main_ppo import run_ppo

    try:
        run_ppo(config, task_runner_class=starter)
    except RayTaskError as error:
        cause: Any = error.cause
        if isinstance(cause, AglError):
            raise type(cause)(str(cause)) from error
        raise AlgorithmError(f"verl failed: {type(cause).__name__}: {cause}") from error
    except RayError as error:
        raise AlgorithmError(f"verl's process died: {type(error).__name__}: {error}") from error
