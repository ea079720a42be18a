"""0.1's task server, in front of a store."""

import asyncio
import contextlib
import threading
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic_core import to_jsonable_python
from starlette.routing import BaseRoute, Route

from agentlightning._v01.reports import FAILED, report_of, report_spans
from agentlightning.types.core import GenericResponse, Mode, RolloutLegacy, Task, TaskIfAny
from agl import InMemoryLightningStore, LightningStore, NamedResources, ProxyLLM, ResourcesUpdate
from agl.env import LightningEnvVar, resolve_str_env_var
from agl.errors import AglError, ConfigError, StoreError
from agl.store.rules import ENDED
from agl.types import AttemptedRollout, Failure, Rollout, RolloutConfig
from agl_gateway.client import HttpGatewayClient
from agl_http.addresses import is_loopback
from agl_http.server import ServerThread
from agl_http.tokens import Tokens, issue_token, token_in, with_token
from agl_http.wire import status_of

MOST_CLAIMS = 1_000_000
"""A task whose claim went stale is handed out again; 0.1 knew no limit."""
MARK = "~"
"""Between the ids; none of them has it."""


class AgentLightningServer:
    """Hands out tasks and takes reports over HTTP as 0.1 did; a store keeps them.

    On loopback it asks for no token: clients of 0.1 know none. Requests must have the header that
    these clients send, which keeps web pages out. Anywhere else it needs a token.

    Args:
        host: Where to listen. Anything but loopback needs ``token``.
        port: 0 for a free one; ``endpoint`` has it after ``start``.
        task_timeout_seconds: A task that was claimed and not reported for so long is handed out
            again.
        store: Where tasks, resources and reports are kept; in memory if left out.
        token: What clients must know; None reads ``AGL_SERVER_TOKEN``. It stands in ``endpoint``,
            which a client of 0.1 takes as it is: ``http://agl:TOKEN@host:8000``.

    Raises:
        ConfigError: The host can be reached from other machines, and there is no token.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 8000,
        task_timeout_seconds: float = 300.0,
        *,
        store: LightningStore | None = None,
        token: str | None = None,
    ) -> None:
        token = resolve_str_env_var(LightningEnvVar.AGL_SERVER_TOKEN, token) or None
        if token is None and not is_loopback(host):
            raise ConfigError(
                f"AgentLightningServer: host {host!r} can be reached from other machines, so a "
                "token is needed: set AGL_SERVER_TOKEN to a long random text, and give clients of "
                "0.1 the address http://agl:TOKEN@HOST:PORT; or serve on 127.0.0.1"
            )
        self.host, self.port = host, port
        self.store = store or InMemoryLightningStore()
        self._proxies = _Proxies(self.store)
        self._tokens = Tokens(token) if token else None
        self._config = RolloutConfig(
            # What comes after all is taken, as long as nobody else has claimed the task.
            unresponsive_seconds=task_timeout_seconds,
            retry_condition=["unresponsive"],
            max_attempts=MOST_CLAIMS,
        )
        self._asked_for: dict[str, str | None] = {}
        """Rollout id -> the resources that ``queue_task`` was given for it."""
        self._handed_over: set[str] = set()
        """Rollouts whose report this server's user has got."""
        self._thread: ServerThread | None = None
        self._stopped = threading.Event()

    @property
    def endpoint(self) -> str:
        """Address for a client on this machine, with the token in it where there is one."""
        thread = self._thread or ServerThread(None, self.host, self.port)
        return with_token(thread.url, self._tokens.admin if self._tokens else None)

    # --- serving

    async def start(self) -> None:
        """Serve, from a thread; returns when requests are taken. A second call changes nothing.

        Raises:
            ConfigError: The port is in use.
        """
        if self._thread is not None:
            return
        self._stopped.clear()
        thread = ServerThread(self._app(), self.host, self.port)
        self.port = await asyncio.to_thread(thread.start)
        self._thread = thread

    async def stop(self) -> None:
        """Answer what is in progress, then end; the store stays open."""
        thread, self._thread = self._thread, None
        self._stopped.set()
        if thread is not None:
            await asyncio.to_thread(thread.stop)

    async def run_forever(self) -> None:
        """Serve until ``stop``."""
        await self.start()
        try:
            await asyncio.to_thread(self._stopped.wait)  # another thread may set it
        finally:
            await self.stop()

    @property
    def routes(self) -> list[BaseRoute]:
        """Those of 0.1, without a look at who calls."""
        api = self._api()  # the whole: a route of FastAPI answers in an application of FastAPI
        own = [one for one in api.routes if isinstance(one, Route)]
        return [Route(one.path, api, methods=sorted(one.methods or ())) for one in own]

    def _api(self) -> FastAPI:
        api = FastAPI(title="agl: tasks of 0.1", openapi_url=None, telemetry={"tracing": False})
        api.add_exception_handler(AglError, _refused)
        api.get("/task")(self._next_task)
        api.get("/resources/latest")(self._latest_resources)
        api.get("/resources/{resource_id}")(self._resources)
        api.post("/rollout")(self._take_report)
        return api

    def _app(self) -> FastAPI:
        app = self._api()

        @app.middleware("http")  # a dependency would be asked when the body has been read
        async def check(request: Request, call_next: Any) -> Any:
            if (objection := self._objection(request)) is not None:
                status, why = objection
                return JSONResponse({"detail": why}, status)
            return await call_next(request)

        return app

    def _objection(self, request: Request) -> tuple[int, str] | None:
        if request.headers.get("x-agentlightning-client") != "true":
            return 403, "send the header X-AgentLightning-Client: true, as clients of 0.1 do"
        if self._tokens is None:
            return None
        authorization = request.headers.get("authorization", "").encode("latin-1")
        grant = self._tokens.read(token_in(authorization))
        if grant is None or grant.role != "admin":
            return 401, "a token is needed: give the client the address http://agl:TOKEN@HOST:PORT"
        return None

    async def _next_task(self) -> TaskIfAny:
        claimed = await self.store.dequeue_rollout()
        if claimed is None:
            return TaskIfAny(is_available=False)
        attempt, config = claimed.attempt, claimed.config
        if config.timeout_seconds is None and config.unresponsive_seconds is None:
            # An algorithm of today queued it, and clients of 0.1 give no sign of life.
            await self.store.update_rollout(claimed.rollout_id, config=self._config)
        asked = self._asked_for.get(claimed.rollout_id, claimed.resources_id)
        task = Task(
            rollout_id=claimed.rollout_id,
            input=claimed.input,
            mode=claimed.mode,
            resources_id=await self._proxies.id_for(claimed, asked),
            create_time=claimed.start_time,
            last_claim_time=attempt.start_time,
            num_claims=attempt.sequence_id,
            metadata=claimed.metadata or {},
        )
        return TaskIfAny(is_available=True, task=task)

    async def _latest_resources(self) -> ResourcesUpdate:
        return _found(await self.store.get_latest_resources(), "no resources have been published")

    async def _resources(self, resource_id: str) -> ResourcesUpdate:
        found = await self._proxies.resources(resource_id)
        return _found(found, f"there are no resources {resource_id!r}")

    async def _take_report(self, report: RolloutLegacy) -> GenericResponse:
        rollout = _found(
            await self.store.get_rollout_by_id(report.rollout_id),
            f"there is no rollout {report.rollout_id!r}",
        )
        if rollout.status in ENDED:
            raise HTTPException(
                409, f"rollout {rollout.rollout_id!r} has ended already; its first report stays"
            )
        if not isinstance(rollout, AttemptedRollout):
            rollout = await self.store.start_attempt(rollout.rollout_id)
        attempt_id = rollout.attempt.attempt_id
        await self.store.add_many_spans(report_spans(report, rollout.rollout_id, attempt_id))
        error = report.metadata.get(FAILED)
        # The calls of the attempt are stored before its end, or it fails.
        if error is None and (lost := await self._proxies.gateways.end(rollout)):
            error = f"GatewayError: {lost}"
        if error is None:
            await self.store.update_attempt(rollout.rollout_id, attempt_id, status="succeeded")
        else:
            kind, _, message = str(error).partition(": ")
            failure = Failure(boundary="agent", type=kind, message=message)
            await self.store.update_attempt(
                rollout.rollout_id, attempt_id, status="failed", error=failure
            )
        return GenericResponse(status="ok", message=f"rollout {rollout.rollout_id} was stored")

    # --- the algorithm's side

    async def queue_task(
        self,
        sample: Any,
        mode: Mode | None = None,
        resources_id: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> str:
        """Queue a task; returns the id of its rollout.

        Args:
            sample: What the agent gets as ``task``; anything that has JSON.
            mode: ``train``, ``val`` or ``test``.
            resources_id: What its agent gets; None for the newest when it is claimed.
            metadata: Kept with it, and sent along.

        Raises:
            UnknownRecordError: There are no such resources.
        """
        rollout = await self.store.enqueue_rollout(
            to_jsonable_python(sample),
            mode=mode,
            resources_id=resources_id,
            config=self._config,
            metadata=metadata or {},
        )
        self._asked_for[rollout.rollout_id] = resources_id
        return rollout.rollout_id

    async def update_resources(self, resources: NamedResources) -> str:
        """Publish resources, which become the newest; returns their id."""
        return (await self.store.add_resources(resources)).resources_id

    async def get_completed_rollout(self, rollout_id: str) -> RolloutLegacy | None:
        """The report of a rollout, once; None while there is none, and when it was taken before."""
        rollout = await self.store.get_rollout_by_id(rollout_id)
        if rollout is None or rollout.status not in ENDED or rollout_id in self._handed_over:
            return None
        self._handed_over.add(rollout_id)
        return await self._report(rollout)

    async def poll_completed_rollout(
        self, rollout_id: str, timeout: float | None = None
    ) -> RolloutLegacy | None:
        """The same, as soon as there is one.

        Args:
            rollout_id: Which.
            timeout: Seconds to wait; None for ever.
        """
        if rollout_id not in self._handed_over:
            with contextlib.suppress(StoreError):  # as in 0.1, of one that is unknown comes None
                await self.store.wait_for_rollouts(rollout_ids=[rollout_id], timeout=timeout)
        return await self.get_completed_rollout(rollout_id)

    async def retrieve_completed_rollouts(self) -> list[RolloutLegacy]:
        """All reports that were not taken before."""
        ended = await self.store.query_rollouts(status_in=sorted(ENDED))
        fresh = [rollout for rollout in ended if rollout.rollout_id not in self._handed_over]
        self._handed_over.update(rollout.rollout_id for rollout in fresh)
        return [await self._report(rollout) for rollout in fresh]

    async def _report(self, rollout: Rollout) -> RolloutLegacy:
        self._asked_for.pop(rollout.rollout_id, None)
        from agl import TracerTraceToTriplet

        spans = await self.store.query_spans(rollout.rollout_id, "latest")
        return report_of(rollout, spans, TracerTraceToTriplet().adapt)


class TaskRoutes:
    """A hook by which the server of a run's store hands out tasks to clients of 0.1, too.

    They need the store's token: in their address, as ``http://agl:TOKEN@host:9999``.
    """

    def store_routes(self, store: LightningStore) -> list[BaseRoute]:
        """0.1's four routes."""
        return AgentLightningServer(store=store).routes


class _Proxies:
    """What a client of 0.1 gets in place of a model behind the proxy: the address of its attempt.

    A runner of today opens such an address by itself. One of 0.1 knows ``endpoint`` alone, so the
    resources that it fetches for a task are made for its attempt: their id has those of rollout and
    attempt behind it. The proxies store an attempt's calls before its end.
    """

    def __init__(self, store: LightningStore) -> None:
        self.store = store
        self.gateways = HttpGatewayClient()

    async def id_for(self, claimed: AttemptedRollout, resources_id: str | None) -> str | None:
        """The id under which the client of a task is to fetch its resources; None: the newest."""
        update = await self._update(resources_id)
        if update is None or not _behind_proxies(update.resources):
            return resources_id
        return MARK.join((update.resources_id, claimed.rollout_id, claimed.attempt.attempt_id))

    async def resources(self, resources_id: str) -> ResourcesUpdate | None:
        """The resources of an id, which may be one of ``id_for``."""
        snapshot, *ids = resources_id.split(MARK)
        update = await self._update(snapshot)
        if update is None or len(ids) != 2:
            return update
        rollout = await self.store.get_rollout_by_id(ids[0])
        if not isinstance(rollout, AttemptedRollout) or rollout.attempt.attempt_id != ids[1]:
            return None  # another client has the task by now
        opened: NamedResources = dict(update.resources)
        behind = _behind_proxies(opened)
        self.gateways.note(rollout, behind)
        for name, one in behind.items():
            if one.asks_for_token:
                one = one.opened(await issue_token(self.store, "model", ids[0], ids[1]))
            opened[name] = one.of_attempt(ids[0], ids[1])
        return update.model_copy(update={"resources_id": resources_id, "resources": opened})

    async def _update(self, resources_id: str | None) -> ResourcesUpdate | None:
        if resources_id is None:
            return await self.store.get_latest_resources()
        return await self.store.get_resources_by_id(resources_id)


def _behind_proxies(resources: NamedResources) -> dict[str, ProxyLLM]:
    return {name: one for name, one in resources.items() if isinstance(one, ProxyLLM)}


def _found(record: Any, problem: str) -> Any:
    if record is None:
        raise HTTPException(404, problem)
    return record


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, AglError)
    return JSONResponse({"detail": str(error)}, status_of(error))
