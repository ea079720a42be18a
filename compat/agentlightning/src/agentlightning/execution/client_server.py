"""Algorithm and runners in processes of their own."""

from collections.abc import Iterable
from typing import Literal

from agentlightning.store.threading import guarded
from agl import ClientServerExecutionStrategy as _ClientServerExecutionStrategy, LightningStore
from agl.env import DEFAULT_PORT, LightningEnvVar, resolve_int_env_var
from agl.errors import ConfigError
from agl.execution.base import AlgorithmBundle, RunnerBundle


class ClientServerExecutionStrategy(_ClientServerExecutionStrategy):
    """agl's, with 0.3's parameters; ``allowed_exit_codes`` other than the default are refused."""

    def __init__(
        self,
        role: Literal["algorithm", "runner", "both"] | None = None,
        server_host: str | None = None,
        server_port: int | None = None,
        n_runners: int = 1,
        graceful_timeout: float = 10.0,
        terminate_timeout: float = 10.0,
        main_process: Literal["algorithm", "runner"] = "algorithm",
        managed_store: bool | None = None,
        allowed_exit_codes: Iterable[int] = (0, -15),
    ) -> None:
        if set(allowed_exit_codes) != {0, -15}:
            raise ConfigError(
                f"ClientServerExecutionStrategy: allowed_exit_codes={allowed_exit_codes!r}: leave "
                "it out. A process that ends otherwise is replaced, and its attempts are reported"
            )
        super().__init__(
            role,
            server_host,
            resolve_int_env_var(LightningEnvVar.AGL_SERVER_PORT, server_port, DEFAULT_PORT),
            n_runners,
            graceful_timeout,
            terminate_timeout,
            main_process,
            managed_store,
        )

    def execute(
        self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore
    ) -> None:
        """As agl's; a store that is not thread-safe gets one call at a time."""
        super().execute(algorithm, runner, guarded(store))
