"""The strategy ``ray``: algorithm and store here, runners on the nodes of a Ray cluster."""

import io
import logging
import os
import re
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cloudpickle

import agl
from agl.agent.function import FunctionalLitAgent
from agl.env import LightningEnvVar, resolve_int_env_var, resolve_str_env_var
from agl.errors import ConfigError
from agl.execution.base import ExecutionEvent, RunnerBundle
from agl.store.base import LightningStore
from agl.utils.checks import check_numbers, one_of
from agl_http.addresses import ELSEWHERE, own_address
from agl_http.tokens import issue_token
from agl_processes.reports import Reports
from agl_processes.supervisor import Supervisor
from agl_ray.actor import Work
from agl_ray.cluster import END_SECONDS, Job, start
from agl_runs.folders import FILE, LOCK, STORE

ON_NODES = ("AGL_CONCURRENCY", "AGL_DISABLE_PLUGINS", "AGL_EMITTER_DEBUG", "AGL_STRICT_PLUGINS")
"""Variables that go to the nodes."""
MOST_BY_ITSELF = 8
"""Most runners that share an actor if nobody says how many."""


class RayExecutionStrategy(agl.ClientServerExecutionStrategy):
    """The algorithm serves the store over HTTP; runners are on the nodes of a Ray cluster.

    Ray places actors, and each forks runners, as ``cs`` does. What a runner, an actor or a node was
    running when it died ends as ``unresponsive`` with a ``lost`` failure, and runs again if the
    rollout's configuration says so; another takes its place, on any node.

    Args:
        runners: How many runners; with ``min_runners``, at most.
        min_runners: How many stay when they have nothing to do; others come when rollouts wait, and
            leave when they have had none for ten seconds. None keeps all of them.
        address: ``auto`` on a machine of the cluster, ``ray://HOST:10001`` from elsewhere, or
            ``HOST:6379``. None reads ``RAY_ADDRESS``; without it, it is ``local``: Ray starts on
            this machine for as long as the run takes.
        resources: What a runner takes: ``cpu`` (1 if left out), ``gpu``, ``memory`` in bytes, and
            names of your own.
        runners_per_actor: How many runners, each a process, share an actor, and so a node. None
            takes as many as one CPU, or one of whatever ``resources`` counts, has room for, at
            most 8.
        runtime_env: What Ray brings to the nodes: ``working_dir``, ``pip``, ``env_vars`` and so on.
        server_host: Address of this machine that nodes reach, where the store is served. None reads
            ``AGL_SERVER_HOST``; without it, it is the one from which the cluster is reached.
        server_port: 0 takes a free one. None reads ``AGL_SERVER_PORT``, and is 0 without it.
        graceful_timeout: Seconds that running rollouts get to finish at the end.
        n_runners: The same as ``runners``.

    Raises:
        ConfigError: An option is wrong.
    """

    def __init__(
        self,
        runners: int | None = None,
        min_runners: int | None = None,
        address: str | None = None,
        resources: Mapping[str, float] | None = None,
        runners_per_actor: int | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        server_host: str | None = None,
        server_port: int | None = None,
        graceful_timeout: float = 10.0,
        n_runners: int | None = None,
    ) -> None:
        name = "strategy 'ray'"
        if (role := resolve_str_env_var(LightningEnvVar.AGL_CURRENT_ROLE)) not in (None, "both"):
            raise ConfigError(f"{name} starts the runners itself; unset AGL_CURRENT_ROLE={role}")
        given = one_of(name, runners=runners, n_runners=n_runners)
        most = 1 if given is None else given
        check: Any = check_numbers
        check(name, whole=True, least=1, runners=most)
        check(name, whole=True, optional=True, least=1, most=most, min_runners=min_runners)
        check(name, whole=True, optional=True, least=1, runners_per_actor=runners_per_actor)
        amounts = {f"resources.{one}": amount for one, amount in (resources or {}).items()}
        check(name, least=0, graceful_timeout=graceful_timeout, **amounts)
        self.resources, self.runtime_env = {"cpu": 1, **(resources or {})}, dict(runtime_env or {})
        for one in self.resources:
            if (ours := one.lower().rstrip("s")) in ("cpu", "gpu", "memory") and one != ours:
                raise ConfigError(f"{name}: resources has no {one!r}; write {ours!r}")
        folder = str(self.runtime_env.get("working_dir", "."))
        if "://" not in folder and not Path(folder).exists():
            raise ConfigError(f"{name}: runtime_env.working_dir: there is no {folder!r} here")
        shares = [amount for one, amount in self.resources.items() if one != "memory"]
        room = int(1 / max(*shares, 1 / MOST_BY_ITSELF) + 1e-9)
        self.runners_per_actor = min(runners_per_actor or max(1, room), most)
        self.min_runners = min_runners
        self.address = address or os.environ.get("RAY_ADDRESS") or "local"
        host = resolve_str_env_var(LightningEnvVar.AGL_SERVER_HOST, server_host)
        if host in (None, "0.0.0.0", "::"):
            there = re.sub("^.*://|:[0-9]+/?$", "", self.address)
            host = own_address({"local": "127.0.0.1", "auto": ELSEWHERE}.get(there, there))
        port = resolve_int_env_var(LightningEnvVar.AGL_SERVER_PORT, server_port) or 0
        token = resolve_str_env_var(LightningEnvVar.AGL_SERVER_TOKEN) or secrets.token_urlsafe()
        super().__init__("both", host, port, most, graceful_timeout, token=token)
        self.managed_store = None  # so that any store but a client's is served over HTTP

    def supervise(
        self, runner: RunnerBundle, store: LightningStore, stop: ExecutionEvent, reports: Reports
    ) -> Supervisor:
        self._pickled = _pickled(runner)
        path = str(getattr(store, "path", ""))  # "" in memory, or an address
        if path and "://" not in path and "working_dir_files" in Path(path).absolute().parts:
            raise ConfigError(
                f"strategy 'ray': Ray deletes {str(Path(path).absolute().parent)!r} when this job "
                "ends. Give a folder that stays: run_dir=/..., or Trainer(run_dir=...)"
            )
        # Folders of runs stay here: agents on the nodes must not read their stores.
        folder, self._shipped = self.runtime_env.get("working_dir", ""), dict(self.runtime_env)
        runs = [one for one, _, names in os.walk(folder) if {LOCK, STORE, FILE} & {*names}]
        if excludes := [f"/{os.path.relpath(one, folder)}" for one in runs if one != folder]:
            self._shipped["excludes"] = [*self.runtime_env.get("excludes", ()), *excludes]
        return Supervisor(
            start,
            stop,
            self.graceful_timeout + self.terminate_timeout + END_SECONDS,
            on_report=reports.deliver,
            lost=f"what keeps them on Ray at {self.address} has ended, as when Ray's head dies",
        )

    async def on_reached(self, store: LightningStore, supervisor: Supervisor) -> None:
        reached: Any = store
        is_served = isinstance(store, agl.LightningStoreServer)
        url = reached.address if is_served else reached.server_address
        amounts = {name: one * self.runners_per_actor for name, one in self.resources.items()}
        options = {f"num_{one}s": amounts.pop(one, 0) for one in ("cpu", "gpu")}
        options |= {"memory": int(amounts.pop("memory", 0)) or None, "resources": amounts}
        # With a working_dir the nodes have code of their own; else they may share this machine's.
        path = [] if "working_dir" in self.runtime_env else sys.path
        installed = f"{sys.prefix}{os.sep}", f"{sys.base_prefix}{os.sep}lib"
        path = [one for one in path if not one.startswith(installed)]
        work = Work(
            numbers=range(self.n_runners),
            leaves=False,
            pickled=self._pickled,
            store_url=url,
            token=await issue_token(store, "runner"),
            path=path,
            variables={name: os.environ[name] for name in ON_NODES if name in os.environ},
            log_level=logging.getLogger("agl").level,
            timeouts=(self.graceful_timeout, self.terminate_timeout),
        )
        job = Job(
            self.address,
            self._shipped,
            options,
            self.n_runners,
            self.min_runners or self.n_runners,
            self.runners_per_actor,
            work,
            await issue_token(store, "reader"),
            is_served,
        )
        supervisor.send(job)


class _Pickler(cloudpickle.Pickler):  # which takes code of ``__main__`` along
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, FunctionalLitAgent) and obj.__module__ != "__main__":
            # Pickled by its name, as a function is, if its module has it under this name.
            name = getattr(obj, "__qualname__", "")
            if getattr(sys.modules.get(obj.__module__), name, None) is obj:
                return name
        return super().reducer_override(obj)


def _pickled(runner: object) -> bytes:
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(runner)
    except Exception as error:  # whatever its classes raise
        raise ConfigError(
            "strategy 'ray': agent, tracer and hooks go to other machines, and cannot be pickled "
            f"({type(error).__name__}: {error}). Make clients and locks in the agent's function, "
            "or at the top of its module"
        ) from error
    return buffer.getvalue()
