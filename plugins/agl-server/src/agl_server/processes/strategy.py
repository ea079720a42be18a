"""Algorithm and store server in one process, runners in others, on one machine or several."""

import asyncio
import atexit
import contextlib
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, Literal, cast, get_args

from agl import env
from agl.env import DEFAULT_HOST, DEFAULT_PORT, LightningEnvVar
from agl.errors import AlgorithmError, ConfigError, StoreError, is_away
from agl.execution.algorithm import run_algorithm
from agl.execution.base import (
    AT_WORK,
    AlgorithmBundle,
    ExecutionEvent,
    ExecutionStrategy,
    RunnerBundle,
)
from agl.execution.shared_memory import SharedMemoryExecutionStrategy
from agl.execution.signals import graceful_signals
from agl.store.base import LightningStore
from agl.utils.checks import check_choice, check_numbers
from agl_http.addresses import is_loopback, url_of
from agl_http.server import address_of, bind
from agl_http.tokens import check_admin, issue_token, tokens_of
from agl_processes.reports import Reports
from agl_processes.runner_process import WORKING, Tell, on_sigterm, run_as_process
from agl_processes.supervisor import RunnerMain, Runners, Supervisor
from agl_server.client import LightningStoreClient
from agl_server.processes.events import MultiprocessingEvent
from agl_server.runner_tokens import TokenSlot, slot_of_server
from agl_server.server import LightningStoreServer

logger = logging.getLogger("agl.server")

Role = Literal["algorithm", "runner", "both"]

LAST_REPORTS_SECONDS, OWN_REPORTS_SECONDS = 2.0, 20.0
"""So long a store of others, or one of this process, is told at the end which attempts were lost;
the disk of the latter may be full."""


class ClientServerExecutionStrategy(ExecutionStrategy):
    """The algorithm serves the store over HTTP; runners are processes that talk to it.

    Runners are forked before anything else starts, so that any agent object works. A runner that
    dies is replaced: its open attempts end as ``unresponsive`` with a ``lost`` failure, and run
    again if the rollout's configuration says so. Processes that agents start and leave behind end
    with the run.

    Args:
        role: What this process does: ``both``, or on several machines ``algorithm`` on one and
            ``runner`` on the others. None reads ``AGL_CURRENT_ROLE``.
        server_host: Where the store is served, or found. None reads ``AGL_SERVER_HOST``, and is
            127.0.0.1 without it.
        server_port: 0 takes a free one. None reads ``AGL_SERVER_PORT``; without it, it is 0 where
            all runs in this role on loopback, and 4747 where other processes must find it.
        n_runners: How many runner processes this machine gets.
        graceful_timeout: Seconds that running rollouts get to finish at the end.
        terminate_timeout: Seconds after SIGTERM before SIGKILL.
        main_process: Which side runs in the main thread of this process. ``runner``, for
            debugging, needs ``n_runners`` 1; the algorithm then runs in a thread, as with ``shm``,
            and the store is not served.
        managed_store: Whether to serve the trainer's store. False uses it as it is, and it must be
            one that processes share. None reads ``AGL_MANAGED_STORE``; without it a
            ``LightningStoreClient`` is used as it is, and any other store is served.
        token: Token of role ``admin``; required when ``server_host`` is not loopback. None reads
            ``AGL_SERVER_TOKEN``. Without it the algorithm makes one, and leaves it for runners of
            the same user on the same machine. Runners themselves get one of role ``runner``.
    """

    def __init__(
        self,
        role: Role | None = None,
        server_host: str | None = None,
        server_port: int | None = None,
        n_runners: int = 1,
        graceful_timeout: float = 10.0,
        terminate_timeout: float = 10.0,
        main_process: Literal["algorithm", "runner"] = "algorithm",
        managed_store: bool | None = None,
        token: str | None = None,
    ) -> None:
        if sys.platform == "win32":
            raise ConfigError("strategy 'cs' forks, which Windows cannot; use strategy='shm'")
        given_role = env.resolve_str_env_var(LightningEnvVar.AGL_CURRENT_ROLE, role, "both")
        known_roles = get_args(Role)
        check_choice("strategy 'cs': AGL_CURRENT_ROLE", known_roles, role=given_role)
        check_numbers("strategy 'cs'", least=1, n_runners=n_runners)
        if main_process == "runner":
            check_numbers("strategy 'cs': main_process='runner'", most=1, n_runners=n_runners)
        self.role = cast(Role, given_role)
        self.server_host = (
            env.resolve_str_env_var(LightningEnvVar.AGL_SERVER_HOST, server_host) or DEFAULT_HOST
        )
        is_found = self.role != "both" or not is_loopback(self.server_host)
        port = env.resolve_int_env_var(LightningEnvVar.AGL_SERVER_PORT, server_port)
        self.server_port = (DEFAULT_PORT if is_found else 0) if port is None else port
        self.n_runners = n_runners
        self.graceful_timeout = graceful_timeout
        self.terminate_timeout = terminate_timeout
        self.main_process = main_process
        self._is_shared = main_process == "runner" and self.role == "both"
        """Whether all runs in threads of this process."""
        self.replaces_runners = not self._is_shared
        self.managed_store = env.resolve_bool_env_var(
            LightningEnvVar.AGL_MANAGED_STORE, managed_store
        )
        self.token = env.resolve_str_env_var(LightningEnvVar.AGL_SERVER_TOKEN, token)
        self._socket: Any = None

    @property
    def runs_algorithm(self) -> bool:
        return self.role != "runner"

    def serves(self, store: LightningStore) -> bool:
        return self.role != "runner" and not self._is_shared and self._manages(store)

    def prepare(self) -> None:
        """Take the port, so that one in use is refused before anything starts.

        Raises:
            ConfigError: The port is in use, the token is too short, or the address is not loopback
                and there is no token.
        """
        if self.role == "runner" or self._is_shared or self.managed_store is False or self._socket:
            return
        if not is_loopback(self.server_host) and not self.token:
            raise ConfigError(
                f"strategy 'cs': serving on {self.server_host!r}, which other machines reach, "
                "needs a token; set AGL_SERVER_TOKEN, here and where the runners are"
            )
        if self.token:
            check_admin(self.token)
        try:
            self._socket = bind(self.server_host, self.server_port)
        except ConfigError as error:
            how = "strategy.server_port, Trainer(port=...) or AGL_SERVER_PORT says which"
            raise ConfigError(f"{error}; {how}") from None

    def execute(
        self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore
    ) -> None:
        if self._is_shared:
            beside = SharedMemoryExecutionStrategy(1, "runner", self.graceful_timeout)
            beside.ask_to_stop = self.ask_to_stop
            beside.execute(algorithm, runner, store)
            return
        self.prepare()
        if not self._manages(store):
            self._close_socket()
        stop = MultiprocessingEvent(ctx=multiprocessing.get_context("fork"))
        supervisor, reports = None, Reports()
        with contextlib.ExitStack() as ending:
            ending.callback(self._close_socket)
            self._runner_token = TokenSlot()
            ending.callback(self._runner_token.clear)
            if self.role != "algorithm":
                supervisor = self.supervise(runner, store, stop, reports)
                ending.callback(supervisor.end)
            terminated = asyncio.run(self._run(algorithm, store, stop, supervisor, reports))
        if terminated and self.role != "runner":
            raise SystemExit(128 + signal.SIGTERM)

    def supervise(
        self, runner: RunnerBundle, store: LightningStore, stop: ExecutionEvent, reports: Reports
    ) -> Supervisor:
        """Start what keeps the runners, before anything else starts."""
        main = self._runner_main(runner, None if self._manages(store) else store, stop)
        timeouts = self.graceful_timeout, self.terminate_timeout
        fork = multiprocessing.get_context("fork")
        return Supervisor(
            Runners(fork, main, self.n_runners, stop, *timeouts).supervise,
            stop,
            sum(timeouts),
            after_fork=self._close_socket,
            on_report=reports.deliver,
        )

    async def on_reached(self, store: LightningStore, supervisor: Supervisor) -> None:
        """Called once runners can reach the store."""

    def _runner_main(
        self, runner: RunnerBundle, store: LightningStore | None, stop: ExecutionEvent
    ) -> RunnerMain:
        # What agents' code can reach of the runner shall hold no token of an admin, but for one
        # that stands in a store which was given as it is.
        url, token = self._url(), self._runner_token

        def main(worker_id: int, tell: Tell) -> None:
            self.token = None
            for name in (LightningEnvVar.AGL_SERVER_TOKEN, LightningEnvVar.AGL_GATEWAY_TOKEN):
                os.environ.pop(name.value, None)

            def run() -> Coroutine[Any, Any, object]:
                used = store if store is not None else LightningStoreClient(url, token=token)
                return runner(used, worker_id, stop)

            AT_WORK.set(lambda: tell(WORKING))
            run_as_process(run, tell)

        return main

    async def _run(
        self,
        algorithm: AlgorithmBundle,
        store: LightningStore,
        stop: ExecutionEvent,
        supervisor: Supervisor | None,
        reports: Reports,
    ) -> bool:
        terminated = False
        # Else the signal means what this process's owner says: Slurm may send it, too.
        if self.role == "algorithm" and signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN:
            _hear_of_end(reports)
        async with self._reached(store) as reached:
            reports.open()
            if supervisor is not None:
                supervisor.watch()
                await self.on_reached(reached, supervisor)
            if self.role == "runner":  # the algorithm runs elsewhere: the runners' end is the end
                main: Coroutine[Any, Any, bool] = asyncio.Event().wait()
            else:
                main = run_algorithm(algorithm, reached, stop, reports.no_runners)
            task = asyncio.ensure_future(main)

            def terminate() -> None:
                nonlocal terminated
                if not self.ask_to_stop():
                    terminated = True
                    stop.set()  # before the algorithm takes the model from under the agents
                    task.cancel()

            following = asyncio.ensure_future(reports.follow(reached))
            try:
                with on_sigterm(terminate), graceful_signals(self.ask_to_stop, signal.SIGINT):
                    await asyncio.wait({task, following}, return_when=asyncio.FIRST_COMPLETED)
                    if following.done():
                        following.result()
                        if self.role != "runner":
                            await asyncio.wait({task})
            finally:
                stop.set()
                task.cancel()
                await asyncio.wait({task})
                reports.no_runners.set()
                if supervisor is not None:
                    # The store can still be reached: runners that finish can report.
                    await asyncio.to_thread(supervisor.end)
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
                last_seconds = OWN_REPORTS_SECONDS if self.serves(store) else LAST_REPORTS_SECONDS
                await reports.follow_rest(reached, last_seconds)
        if task.cancelled():
            came_to_its_end = terminated
        elif (error := task.exception()) is not None:
            why = f"the algorithm failed: {type(error).__name__}: {error}"
            raise AlgorithmError(why) from error
        else:
            came_to_its_end = task.result()
        if not came_to_its_end:
            reports.raise_if_given_up()
        return terminated

    @contextlib.asynccontextmanager
    async def _reached(self, store: LightningStore) -> AsyncGenerator[LightningStore]:
        """The store as this process reaches it: as it was given, or served, here or elsewhere."""
        if not self._manages(store):
            yield store
        elif self.role == "runner":
            client = LightningStoreClient(self._url(), token=self.token or self._left_token())
            try:
                try:
                    token = await issue_token(client, "runner")
                except StoreError as error:
                    if is_away(error):
                        raise
                    # It has a runner's token itself.
                    token = self.token or "none"
                self._runner_token.put(token)
                yield client
            finally:
                await client.close()
        else:
            server = LightningStoreServer(
                store, sock=self._socket, token=self.token, extra_routes=self.extra_routes
            )
            self._runner_token.put(await issue_token(server, "runner"))
            left = self._left_token() if self.role == "algorithm" and not self.token else None
            if left is not None:
                left.put(tokens_of(server).admin)
            await server.start()
            logger.info("The store is served at %s", server.address)
            try:
                yield server
            finally:
                await server.stop()
                if left is not None:
                    left.clear()

    def _left_token(self) -> TokenSlot:
        """Where an algorithm of this user leaves the token for runners on its machine."""
        return slot_of_server(self._url())

    def _manages(self, store: LightningStore) -> bool:
        if self.managed_store is None:
            return not isinstance(store, LightningStoreClient)
        return self.managed_store

    def _url(self) -> str:
        host, port = self.server_host, self.server_port
        if self._socket is not None:
            port = address_of(self._socket)[1]
        if self.role != "runner" and host in ("0.0.0.0", "::"):
            host = "127.0.0.1"
        return url_of(host, port)

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _hear_of_end(reports: Reports) -> None:
    """SIGUSR1 then says that the runners, which ``agl run`` has started apart, have all ended."""
    loop = asyncio.get_running_loop()

    def hear(*_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(reports.no_runners.set)

    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGUSR1, hear)
        # Python would put the default back, by which a late signal kills a process that has ended.
        atexit.register(signal.signal, signal.SIGUSR1, signal.SIG_IGN)
