"""Several processes of the LLM proxy that share one address: ``LLMProxy(num_workers=4)``.

Each worker is a whole ``agl.LLMProxy`` at a private address of its own and at the shared one, where
the system gives each connection to one of them; see ``agl_gateway.processes``. Workers write to the
store over HTTP.
"""

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from agl.errors import ConfigError, GatewayError
from agl_gateway import LLMProxy
from agl_gateway.processes import Processes
from agl_http.server import bind, forget_in_forks

logger = logging.getLogger("agl.compat")


class Workers:
    """The processes, as their parent sees them; ``sock`` listens at the shared address.

    ``settings`` gives those of a proxy that starts, as JSON can hold them: arguments of
    ``agl.LLMProxy``, and ``store``, the address of the store's server, with a token.
    """

    def __init__(
        self, sock: socket.socket, number: int, settings: Callable[[], dict[str, Any]]
    ) -> None:
        self._shared = sock
        self._private = [bind("127.0.0.1", 0) for _ in range(number)]
        self._settings = settings
        self._workers: list[_Worker] = []
        self._is_ending = False
        self._paused: dict[str | None, dict[str, Any]] = {}
        """What a worker that is started again must not let through."""
        self._one_at_a_time = threading.Lock()
        forget_in_forks(self)

    def start(self) -> None:
        """Return when all of them take requests; a ``GatewayError`` if one does not start."""
        for index in range(len(self._private)):
            self._workers.append(self._start(index))
        for worker in list(self._workers):
            worker.wait_until_ready()

    def _start(self, index: int) -> "_Worker":
        sockets = (self._shared, self._private[index])
        about = {
            "index": index,
            "ports": [each.getsockname()[1] for each in self._private],
            "sockets": [each.fileno() for each in sockets],
            "family": int(self._shared.family),
            "proxy": self._settings(),
        }
        worker = _Worker(about)
        threading.Thread(target=self._watch, args=(index, worker), daemon=True).start()
        return worker

    def _watch(self, index: int, worker: "_Worker") -> None:
        code = worker.process.wait()
        if self._is_ending or not worker.is_ready:
            return
        logger.error(
            "worker %s of the LLM proxy ended with code %s, and is started again; the attempts "
            "whose calls it had fail",
            index,
            code,
        )
        with self._one_at_a_time:
            try:
                self._replace(index, worker)
            except GatewayError as error:
                logger.error("worker %s of the LLM proxy cannot be started again: %s", index, error)

    def _replace(self, index: int, worker: "_Worker") -> "_Worker":
        """The successor of a worker that has ended; whoever sees that first starts it.

        If it does not start, or the proxy ends, that is a ``GatewayError``.
        """
        if self._workers[index] is not worker:
            return self._workers[index]
        if self._is_ending:
            raise GatewayError("the LLM proxy ends")
        worker.end()
        successor = self._workers[index] = self._start(index)
        successor.wait_until_ready()
        for model, named in self._paused.items():
            successor.send(["pause", [model], named])
            with suppress(ConfigError):  # the model is served no more
                successor.answer()
        return successor

    def ask(self, what: str, *args: Any, **named: Any) -> list[Any]:
        """Have every worker call a method of its proxy, and wait for the answers.

        Where one has died, its successor answers. All are heard before anything is raised, a
        refusal as a ``ConfigError`` and a death as a ``GatewayError``: an answer that nobody reads
        would be taken for that to the next question.
        """
        with self._one_at_a_time:
            question = [what, args, named]
            present = list(enumerate(self._workers))
            for _, worker in present:
                with suppress(GatewayError):  # the lack of an answer says so, too
                    worker.send(question)
            answers: list[Any] = []
            failures: list[Exception] = []
            for index, worker in present:
                try:
                    answers.append(self._answer(index, worker, question))
                except (ConfigError, GatewayError) as error:
                    failures.append(error)
            if failures:
                raise failures[0]
            if what == "pause":
                self._paused[args[0]] = named
            elif what == "resume":
                for model in [args[0]] if args[0] else list(self._paused):
                    self._paused.pop(model, None)
            return answers

    def _answer(self, index: int, worker: "_Worker", question: Any) -> Any:
        try:
            return worker.answer()
        except GatewayError:
            successor = self._replace(index, worker)
            successor.send(question)
            return successor.answer()

    def is_running(self) -> bool:
        is_started = len(self._workers) == len(self._private)
        return is_started and all(one.process.poll() is None for one in self._workers)

    def stop(self) -> None:
        """Let calls in flight finish, and end."""
        self.forget()
        for worker in self._workers:
            worker.end()

    def forget(self) -> None:
        """Let go of the parent's sockets and pipes, as a forked child does at once."""
        self._is_ending = True
        for sock in (self._shared, *self._private):
            sock.close()
        for worker in self._workers:
            worker.close()


class _Worker:
    """One process: JSON goes in, and an answer comes out for each."""

    def __init__(self, about: dict[str, Any]) -> None:
        self.is_ready = False
        self._pipe, theirs = Pipe()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "agentlightning._proxy", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[*about["sockets"], theirs.fileno()],
            )
        self.send(about)

    def wait_until_ready(self) -> None:
        self.answer()
        self.is_ready = True

    def answer(self) -> Any:
        try:
            said = json.loads(self._pipe.recv_bytes())
        except (EOFError, OSError, TypeError):  # the last one: closed meanwhile, as the proxy ends
            raise GatewayError("a worker of the LLM proxy has ended; its log says why") from None
        if "refused" in said:
            raise ConfigError(said["refused"])
        return said["value"]

    def send(self, value: Any) -> None:
        try:
            self._pipe.send_bytes(json.dumps(value).encode())
        except OSError as error:
            raise GatewayError(f"a worker of the LLM proxy has ended: {error}") from None

    def close(self) -> None:
        """Say no more; the worker then ends."""
        self._pipe.close()

    def end(self) -> None:
        self.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


# --- in a worker


async def _serve(pipe: "Connection[Any, Any]") -> None:
    """Serve until the parent says no more; then let calls in flight finish."""
    import agl

    def say(value: dict[str, Any]) -> None:
        pipe.send_bytes(json.dumps(value).encode())

    about = json.loads(pipe.recv_bytes())
    settings = dict(about["proxy"])
    store = agl.LightningStoreClient(settings.pop("store"))
    added = settings.pop("added")
    shared, own = (socket.socket(about["family"], fileno=n) for n in about["sockets"])
    proxy = LLMProxy(store=store, **settings)
    for entry in added:
        proxy.add_model(entry)
    places = (about["ports"], about["index"], own)
    proxy.processes = Processes(shared, *places, since=time.monotonic())
    await proxy.start()
    say({"value": True})
    with suppress(EOFError):
        while True:
            what, args, named = json.loads(await asyncio.to_thread(pipe.recv_bytes))
            try:
                value = getattr(proxy, what)
                if callable(value):
                    value = value(*args, **named)
                say({"value": await value if asyncio.iscoroutine(value) else value})
            except ConfigError as error:
                say({"refused": str(error)})
    await proxy.stop()
    await store.close()


if __name__ == "__main__":
    os.dup2(2, 1)  # a script's output is not for what anybody here prints
    asyncio.run(_serve(Connection(int(sys.argv[1]))))
