"""What agents' code may do behind ``isolation: process``, and that it may do it without."""

import asyncio
import json
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.interpreter import python

import agl
from agl.errors import ConfigError
from agl_sqlite import SqliteLightningStore
from agl_testing.echo_llm import EchoLLM

sys.path.insert(0, str(Path(__file__).parent / "walled"))
import attacks

process = pytest.importorskip("agl_sandbox.process")
from agl_sandbox import filesystem_view, probe  # noqa: E402
from agl_sandbox.forwarding import Forwarder, Routes  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wall is of Linux")
is_root = hasattr(os, "getuid") and os.getuid() == 0
needs_bwrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed (apt-get install bubblewrap)"
)
SLEEP = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(300)"]
WALL = {"memory_mb": 300, "processes": 40, "files": 100, "file_mb": 8, "disk_mb": 16}


async def run_all(tasks, *, store=None, resources=None, timeout=None, **options) -> list[Any]:
    """What each task's attack gained, or the error that it ended with."""
    store = store or agl.InMemoryLightningStore()
    if resources:
        await store.add_resources(resources)
    config = agl.RolloutConfig(timeout_seconds=timeout)
    rollouts = [await store.enqueue_rollout(task, config=config) for task in tasks]
    runner = agl.LitAgentRunner(agl.OtelTracer(), max_rollouts=len(tasks), **options)
    with runner.run_context(agent=attacks.agent, store=store):
        await runner.iter()
    results: list[Any] = []
    for rollout in rollouts:
        done = await store.get_rollout_by_id(rollout.rollout_id)
        spans = await store.query_spans(rollout.rollout_id)
        found = [agl.get_object_value(s) for s in spans if s.name == "agentlightning.object"]
        results.append(found[0]["gained"] if found else done.attempt.error)
    return results


def tasks_at(at: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The attacks, by what each would gain."""
    return {
        "read the store's file": {"do": "find_descriptor", "path": at["store"]},
        "read a file that only the runner may read": {"do": "read_file", "path": at["secret"]},
        "write into the runner's folder": {"do": "write_file", "path": f"{at['folder']}/new"},
        "read an open file of the runner's": {"do": "find_descriptor", "path": at["secret"]},
        "read the runner's environment": {"do": "read_environment", "pid": os.getpid()},
        "read the runner's memory": {"do": "read_memory", "pid": os.getpid()},
        "trace a neighbour": {"do": "trace", "pid": at["neighbour"]},
        "find an API key": {"do": "find_secret", "name": "AGL_TEST_API_KEY"},
        "find the store in its memory": {"do": "find_store"},
        "find what a neighbour wrote": {"do": "find_note", "name": at["mark"]},
        "connect to the store's port": {"do": "connect", "port": at["port"]},
        "connect to a Unix socket": {"do": "connect_unix", "address": f"{at['folder']}/socket"},
        "connect to an abstract socket": {"do": "connect_unix", "address": at["abstract"]},
        "kill the runner": {"do": "send_signal", "pid": os.getpid(), "signal": 0},
        "stop a neighbour": {"do": "send_signal", "pid": at["neighbour"], "signal": 18},  # CONT
        "see a neighbour": {"do": "see_process", "mark": at["mark"]},
        "fork without end": {"do": "fork_often"},
        "allocate without end": {"do": "allocate", "mb": 500},
        "allocate shared memory without end": {"do": "allocate_shared", "mb": 500},
        "write a huge file": {"do": "write_much", "mb": 12},
        "fill the disk": {"do": "write_many", "mb": 24},
        "fill folders one by one": {"do": "write_beside", "mb": 5},
        "make empty files without end": {"do": "make_empty_files", "count": 5000},
        "keep memory in a segment": {"do": "keep_in_segment", "mb": 1},
        "keep memory in a memfd": {"do": "keep_in_memfd"},
        "open files without end": {"do": "open_many", "count": 200},
        "become root": {"do": "become_root"},
        "mount": {"do": "mount", "path": at["folder"]},
        "open a socket to the host": {"do": "open_vsock"},
        "make a namespace of users": {"do": "make_user_namespace"},
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, Any]]:
    """What attacks go for."""
    folder = tmp_path_factory.mktemp("world")
    mark = secrets.token_hex(8)
    neighbour = subprocess.Popen([*SLEEP, mark])
    secret = folder / "secret"
    secret.touch(0o600)
    secret.write_text("the answers")
    folder.chmod(0o755)
    abstract = f"\0agl-{mark}"
    store = SqliteLightningStore(str(folder / "store.db"))
    asyncio.run(store.enqueue_rollout("the answer is 42"))
    os.environ["AGL_TEST_API_KEY"] = "sk-1234"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as hidden,
        secret.open() as opened,
    ):
        unix.bind(str(folder / "socket"))
        os.chmod(folder / "socket", 0o777)
        hidden.bind(abstract)
        for each in (unix, hidden):
            each.listen(100)
        port, store_path = tcp.getsockname()[1], str(folder / "store.db")
        os.set_inheritable(opened.fileno(), True)
        places: dict[str, Any] = {"folder": str(folder), "secret": str(secret), "mark": mark}
        places |= {"store": store_path, "abstract": abstract, "port": port}
        tasks = tasks_at({**places, "neighbour": neighbour.pid})
        try:
            yield {"tasks": tasks, "mark": mark, "neighbour": neighbour, "port": port}
        finally:
            del os.environ["AGL_TEST_API_KEY"]
            neighbour.kill()
            neighbour.wait()
            asyncio.run(store.close())


ATTACKS = [
    pytest.param(one, marks=[pytest.mark.sqlite] * (one == "read the store's file"))
    for one in tasks_at(defaultdict(str))
]
AS_ROOT = ("trace a neighbour", "become root", "mount")
"""Attacks that without a wall only root can do for sure."""
BY_KERNEL = ("open a socket to the host", "make a namespace of users")
"""Attacks that not every kernel lets anybody do."""


def attack_all(world: dict[str, Any], **options: Any) -> dict[str, Any]:
    """All attacks in one run, one after the other."""
    note = {"do": "leave_note", "name": world["mark"]}
    results = asyncio.run(run_all([note, *world["tasks"].values()], **options))
    return dict(zip(["note", *world["tasks"]], results, strict=True))


@pytest.fixture(scope="module")
def outside(world, tmp_path_factory) -> Generator[dict[str, Any]]:
    """What the attacks gain without a wall."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("cwd"))
    yield attack_all(world, isolation="none")
    os.chdir(before)
    for folder in attacks.FOLDERS:
        Path(folder, world["mark"]).unlink(missing_ok=True)


@pytest.fixture(scope="module")
def behind(world: dict[str, Any], outside: dict[str, Any]) -> dict[str, Any]:
    """What they gain behind it; after those without, which leave their notes."""
    return attack_all(world, isolation={"type": "process", **WALL})


def is_refused(result: Any) -> bool:
    return isinstance(result, agl.types.Failure) and result.boundary == "agent"


@needs_bwrap
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_refused_behind_the_wall(behind: dict[str, Any], attack: str) -> None:
    assert is_refused(behind[attack]), behind[attack]


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_works_without_the_wall(outside: dict[str, Any], attack: str) -> None:
    if attack in AS_ROOT and not is_root:
        pytest.skip("only root can do that anyhow")
    if attack in BY_KERNEL and is_refused(outside[attack]):
        pytest.skip("this kernel refuses it to everybody")
    assert not is_refused(outside[attack]), outside[attack]


@needs_bwrap
def test_an_agent_writes_in_its_own_folders_only(behind: dict[str, Any]) -> None:
    allowed = {"/attempt", "/dev/shm", "/tmp"}
    assert {"/attempt"} <= {*behind["note"]} <= allowed


@needs_bwrap
async def test_an_agent_holds_nothing_open_but_its_own() -> None:
    (found,) = await run_all([{"do": "list_descriptors"}], isolation="process")
    assert {*found} <= {"socket", "anon_inode"}  # to the runner, and its own event loop


@needs_bwrap
def test_what_is_its_owners_alone_is_hidden_beside_a_module(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    modes = {"data.txt": 0o644, ".env": 0o644, "key.txt": 0o600, "kept.txt": 0o600}
    for name, mode in modes.items():
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(mode)
    for folder, mode in (("keys", 0o700), ("open", 0o755), ("asked", 0o755)):
        (tmp_path / folder).mkdir(mode)
        (tmp_path / folder / "inner.txt").write_text(folder)
    read, hide = [str(tmp_path), str(tmp_path / "kept.txt")], [str(tmp_path / "asked")]
    names = ["data.txt", "open/inner.txt"]
    hidden = ["key.txt", ".env", "keys/inner.txt", "asked/inner.txt"]
    if not is_root:  # whose agents are another user
        names.insert(0, "kept.txt")
    tasks = [{"do": "read_file", "path": str(tmp_path / name)} for name in [*names, *hidden]]
    wall = {"type": "process", "read": read, "hide": hide}
    results = asyncio.run(run_all(tasks, isolation=wall))
    assert [*map(is_refused, results)] == [False] * len(names) + [True] * len(hidden)


@pytest.mark.parametrize("walled", [pytest.param(True, marks=needs_bwrap), False])
async def test_an_agent_past_its_time_takes_all_along_that_it_started(walled: bool) -> None:
    mark = secrets.token_hex(8)
    task = {"do": "stay", "mark": mark, "seconds": 300 if walled else 4}
    isolation = {"type": "process", **WALL} if walled else "none"
    (result,) = await run_all([task], timeout=2, isolation=isolation)
    left = [p for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or ())]
    for each in left:
        each.kill()
    assert result.boundary == "timeout"
    assert len(left) == (0 if walled else 1)


@pytest.mark.parametrize("walled", [pytest.param(True, marks=needs_bwrap), False])
async def test_cpu_time_has_a_limit(walled: bool) -> None:
    isolation: Any = {"type": "process", "cpu_seconds": 1} if walled else "none"
    (result,) = await run_all([{"do": "spin", "seconds": 2.5}], isolation=isolation)
    assert is_refused(result) == walled
    assert not walled or "SIGKILL" in result.message


@needs_bwrap
async def test_attempts_that_lose_their_sandbox_together_start_one_other(monkeypatch) -> None:
    started: list[Any] = []
    real = process.ProcessSandbox._spawn

    def spawn(sandbox: Any) -> Any:
        started.append(real(sandbox))
        return started[-1]

    monkeypatch.setattr(process.ProcessSandbox, "_spawn", spawn)
    store = agl.InMemoryLightningStore()
    options: Any = {"isolation": "process", "concurrency": 4, "max_rollouts": 8}
    runner = agl.LitAgentRunner(agl.OtelTracer(), **options)
    stay: dict[str, Any] = {"do": "stay", "mark": "m", "seconds": 300}
    for task in [stay] * 4 + [{"do": "work_honestly"}] * 4:
        await store.enqueue_rollout(task)
    with runner.run_context(agent=attacks.agent, store=store):
        running = asyncio.create_task(runner.iter())
        while len(runner._attempts.running) < 4:  # noqa: ASYNC110 (nothing tells it)
            await asyncio.sleep(0.05)
        runner._sandbox._clean.process.kill()  # type: ignore
        await running
    ended = [r.status for r in await store.query_rollouts()]
    assert ended == ["failed"] * 4 + ["succeeded"] * 4
    assert len(started) == 2


@needs_bwrap
async def test_honest_work_is_not_refused() -> None:
    with EchoLLM() as model:
        resources = {"llm": agl.LLM(endpoint=model.url, model="echo", api_key="key")}
        tasks = [{"do": "work_honestly", "terminal": is_root}, {"do": "ask_model"}]
        work, answer = await run_all(tasks, resources=resources, isolation="process")
    assert work == "mine"
    assert json.loads(answer)["choices"][0]["message"]["content"] == "the capital of Norway"
    assert model.request_headers[-1]["authorization"] == "Bearer key"


@needs_bwrap
@pytest.mark.parametrize("host", ["localhost", "model.example", "10.7.7.7"])
async def test_a_model_keeps_its_address_behind_the_wall(host, monkeypatch) -> None:
    async def resolve(name: str, port: int) -> Any:
        assert name == host
        return await asyncio.open_connection("127.0.0.1", port)

    async def tell_host(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        body = next(line for line in head.splitlines() if line.lower().startswith("host:"))
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    def forwarder(routes: Routes) -> Forwarder:
        return Forwarder([partial(resolve, *target) for target in routes.listen.values()])

    monkeypatch.setattr(Routes, "forwarder", forwarder)
    async with await asyncio.start_server(tell_host, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        resources = {"llm": agl.LLM(endpoint=f"http://{host}:{port}/v1", model="m")}
        (answer,) = await run_all([{"do": "ask_model"}], resources=resources, isolation="process")
    assert answer.lower() == f"host: {host}:{port}"


@needs_bwrap
async def test_more_models_than_a_wall_has_room_for_are_told_with_the_limit() -> None:
    resources = {
        f"llm{n}": agl.LLM(endpoint=f"http://127.0.0.1:{4000 + n}/v1", model="m") for n in range(33)
    }
    (error,) = await run_all([{"do": "work_honestly"}], resources=resources, isolation="process")
    assert "have 33 addresses, and a wall has room for 32" in error.message


@needs_bwrap
async def test_attempts_run_beside_each_other(world: dict[str, Any]) -> None:
    tasks = [{"do": "work_honestly"}, {"do": "find_note", "name": world["mark"]}] * 3
    tasks += [{"do": "leave_note", "name": world["mark"]}] * 2
    results = await run_all(tasks, isolation="process", concurrency=8)
    assert [is_refused(r) for r in results] == [False, True] * 3 + [False] * 2


class AskAll(agl.Algorithm):
    """Queues tasks for the model behind the gateway, and waits for them."""

    def __init__(self, tasks: list[Any]) -> None:
        self.tasks = tasks

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store, proxy = self.get_store(), self.get_llm_proxy()
        await store.add_resources({"llm": proxy.as_resource(model="echo")})
        queued = [await store.enqueue_rollout(task) for task in self.tasks]
        ids = [rollout.rollout_id for rollout in queued]
        await store.wait_for_rollouts(rollout_ids=ids, timeout=100)


@needs_bwrap
def test_a_run_with_processes_and_a_gateway_goes_on_as_without() -> None:
    pytest.importorskip("agl_gateway")
    tasks = [{"do": "ask_model"}] * 6 + [{"do": "find_store"}]
    with EchoLLM() as model:
        litellm = {"model": "hosted_vllm/echo", "api_base": model.url, "api_key": "provider's key"}
        store = agl.InMemoryLightningStore()
        agl.Trainer(
            algorithm=AskAll(tasks),
            store=store,
            strategy={"type": "cs", "n_runners": 2, "server_port": 0},
            runner={"isolation": {"type": "process", "strict": True}},
            llm_proxy=agl.LLMProxy(model_list=[{"model_name": "echo", "litellm_params": litellm}]),
        ).fit(attacks.agent)

    async def read() -> list[tuple[Any, list[agl.Span]]]:
        rollouts = await store.query_rollouts()
        return [(r, list(await store.query_spans(r.rollout_id))) for r in rollouts]

    *asked, (attack, _) = asyncio.run(read())
    assert attack.status == "failed"
    for rollout, spans in asked:
        assert rollout.status == "succeeded"
        assert agl.find_final_reward(spans) == 1.0
        call, said, _ = [span.name for span in spans]
        assert (call, said) == ("openai.chat.completion", "agentlightning.object")
        assert "Norway" in agl.get_object_value(spans[1])["gained"]
    assert len(model.requests) == 6


@needs_bwrap
def test_a_run_whose_wall_does_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "OWN_VARIABLES", ())
    store = agl.InMemoryLightningStore()
    trainer = agl.Trainer(
        store=store,
        strategy={"type": "cs", "n_runners": 1, "server_port": 0},
        runner={"isolation": "process"},
    )
    with pytest.raises(agl.errors.RunnerCrashError, match=r"the wall does not hold: .*HOME"):
        trainer.fit(attacks.agent, [{"do": "work_honestly"}])
    (rollout,) = asyncio.run(store.query_rollouts())
    assert list(asyncio.run(store.query_attempts(rollout.rollout_id))) == []


async def start(**options: Any) -> Any:
    """A sandbox that has been started, and so probed."""
    sandbox = process.ProcessSandbox(**options)
    await sandbox.start(attacks.agent, agl.OtelTracer())
    sandbox.close()
    return sandbox


@needs_bwrap
async def test_the_probe_finds_everything_closed() -> None:
    sandbox = await start(strict=True)
    assert len(sandbox.findings) == 12
    assert set(sandbox.findings.values()) == {probe.CLOSED}


PID_1 = """
import asyncio, os, sys
sys.path.insert(0, sys.argv[1])
import agl, attacks
from agl_sandbox.process import ProcessSandbox

async def main():
    sandbox = ProcessSandbox()
    await sandbox.start(attacks.agent, agl.OtelTracer())
    sandbox.close()
    print(os.getpid(), {*sandbox.findings.values()})

asyncio.run(main())
"""


@needs_bwrap
@pytest.mark.parametrize("mount", [["--mount-proc"], []])
def test_the_wall_holds_around_a_runner_that_is_process_1(mount: list[str]) -> None:
    """As the command of a container is."""
    unshare = ["unshare", "--pid", "--fork", *mount]
    tried = subprocess.run([*unshare, "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"no namespaces may be made here: {tried.stderr.strip()}")
    folder = str(Path(__file__).parent / "walled")
    command = [*unshare, sys.executable, "-c", PID_1, folder]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert run.stdout == "1 {'closed'}\n", run.stderr


def test_the_same_probe_finds_everything_open_without_a_wall(monkeypatch) -> None:
    monkeypatch.setenv("AGL_TEST_API_KEY", "sk-1234")
    with tempfile.NamedTemporaryFile(), probe.open_targets(["PATH"]) as targets:
        found = probe.try_all(targets)
    assert [what for what, how in found.items() if how == probe.CLOSED] == []
    assert "AGL_TEST_API_KEY" in found[probe.OWN_ENVIRONMENT]


@needs_bwrap
@pytest.mark.parametrize(
    ("hole", "says"),
    [
        (["--share-net"], r"connect to a port of this machine \(open: somebody listens\)"),
        (["--bind", "/tmp", "/tmp"], "connect to a Unix socket"),
        (["--setenv", "AGL_TOKEN", "x"], r"own environment \(open: AGL_TOKEN\)"),
    ],
)
async def test_a_wall_with_a_hole_is_refused(hole, says, monkeypatch) -> None:
    real = filesystem_view.base_options

    def options(*given: Any, **named: Any) -> list[str]:
        options = real(*given, **named)
        end = options.index("--remount-ro")
        options[end:end] = [] if hole == ["--share-net"] else hole
        return options

    monkeypatch.setattr(filesystem_view, "base_options", options)
    if hole[0] == "--bind":
        monkeypatch.setattr(filesystem_view, "own_folders", lambda shown: [filesystem_view.HOME])
    if hole == ["--share-net"]:
        monkeypatch.setattr(process, "WITH_NETWORK", ())
    with pytest.raises(ConfigError, match=rf"the wall does not hold: .*{says}"):
        await start(network=hole == ["--share-net"])


@needs_bwrap
async def test_a_descriptor_of_the_runner_is_a_hole(tmp_path, monkeypatch) -> None:
    with open(tmp_path / "run.log", "w") as log:  # noqa: ASYNC230 (a few bytes)
        popen, number = subprocess.Popen, log.fileno()

        def leaking(command: Any, pass_fds: Any = (), **options: Any) -> Any:
            return popen(command, pass_fds=[*pass_fds, number], **options)

        monkeypatch.setattr(subprocess, "Popen", leaking)
        with pytest.raises(ConfigError, match=r"use what the runner has open \(open: .*run\.log"):
            await start()


@needs_bwrap
async def test_an_open_network_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        sandbox = await start(network=True)
    assert sandbox.findings[probe.CONNECT].startswith("open")
    assert "an agent can connect to a port of this machine" in caplog.text
    with pytest.raises(ConfigError, match="does not hold"):
        await start(network=True, strict=True)


@pytest.fixture
def no_bwrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    real = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "bwrap" else real(name))


@pytest.fixture
def readable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the project did not lie in a folder that only root may enter."""
    monkeypatch.setattr(process, "_check_others_may_read", lambda: None)


@pytest.mark.usefixtures("no_bwrap", "readable")
async def test_without_bubblewrap_what_stays_open_is_said(caplog) -> None:
    with caplog.at_level(logging.WARNING):
        sandbox = await start()
    assert "bubblewrap is not installed" in caplog.text
    closed = {what for what, how in sandbox.findings.items() if how == probe.CLOSED}
    assert probe.OWN_ENVIRONMENT in closed
    assert closed >= set(process.WITH_USER) or not is_root
    for what, how in sandbox.findings.items():
        assert (what in caplog.text) == (how != probe.CLOSED)
    assert probe.CONNECT not in closed


@pytest.mark.usefixtures("no_bwrap")
def test_strict_refuses_to_do_without_bubblewrap() -> None:
    with pytest.raises(ConfigError, match="with strict: bubblewrap is not installed"):
        agl.Trainer(runner={"isolation": process.ProcessSandbox(strict=True)})


@pytest.mark.usefixtures("readable")
def test_a_machine_without_a_filter_for_system_calls_is_said(monkeypatch, caplog) -> None:
    process.ProcessSandbox()
    assert "filter" not in caplog.text
    monkeypatch.setattr("agl_sandbox.syscalls._PROGRAM", None)
    process.ProcessSandbox()
    assert "has no filter for system calls" in caplog.text


@pytest.mark.parametrize("option", ["hide", "read"])
def test_a_path_that_does_not_exist_is_refused(option: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{option} names '.*answer', which does not exist"):
        process.ProcessSandbox(**{option: [str(tmp_path / "answer")]})


@pytest.mark.usefixtures("no_bwrap", "readable")
def test_options_without_effect_are_refused_or_named_without_bubblewrap(tmp_path, caplog) -> None:
    with pytest.raises(ConfigError, match=rf"cannot hide \['{tmp_path}'\]: bubblewrap is not"):
        process.ProcessSandbox(hide=[str(tmp_path)])
    with caplog.at_level(logging.WARNING):
        process.ProcessSandbox(read=[str(tmp_path)])
    assert "the options read, connect and disk_mb have no effect" in caplog.text


@pytest.mark.usefixtures("no_bwrap", "readable")
async def test_limits_and_the_end_hold_without_bubblewrap() -> None:
    wall = {"type": "process", **WALL}
    mark = secrets.token_hex(8)
    tasks = [
        {"do": "allocate", "mb": 500},
        {"do": "write_much", "mb": 12},
        {"do": "open_many", "count": 200},
        {"do": "find_secret", "name": "HOSTNAME_OF_NOBODY"},
        {"do": "stay", "mark": mark, "seconds": 300},
    ]
    results = await run_all(tasks, timeout=4, isolation=wall)
    assert [is_refused(result) for result in results[:4]] == [True] * 4
    assert results[4].boundary == "timeout"
    assert not [p for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or ())]


SCRIPT = """
import tempfile
import agl

with tempfile.TemporaryFile() as file:  # as libraries do when they are imported
    file.write(b"x")


class Agent(agl.LitAgent):
    def __init__(self, word):
        super().__init__()
        self.word = word

    def rollout(self, task, resources, rollout):
        return float(task == self.word)


def main():
    trainer = agl.Trainer(n_runners=1, port=0, runner={"isolation": "process"})
    trainer.fit(Agent("right"), ["right", "wrong"])


"""


LOGGED = """
import os, sys
from pathlib import Path
import agl

def seen():
    for name in os.listdir("/proc/self/fd"):
        try:
            file = os.open(f"/proc/self/fd/{name}", os.O_RDONLY | os.O_NONBLOCK)
            yield os.read(file, 100_000).decode(errors="replace")
        except OSError:
            pass
    try:
        yield Path(__file__).with_name("run.log").read_text()
    except OSError:
        pass

class Agent(agl.LitAgent):
    def rollout(self, task, resources, rollout):
        found = "424242" in "".join(seen())
        for number in (1, 2):
            try:
                os.ftruncate(number, 0)
            except OSError:
                pass
            os.write(number, b"all is well\\r\\x1b[2K\\n")
        return 424242 if found else 0

    def grade(self, task, private, result):
        print("the grader says it")
        assert result == private, f"expected {private}"
        return 1.0

if __name__ == "__main__":
    print("the log begins", flush=True)
    wall = {"type": "process", "strict": True}
    trainer = agl.Trainer(n_runners=1, port=0, runner={"isolation": wall})
    trainer.fit(Agent(), [{"private": 424242}] * 2)
"""


@needs_bwrap
def test_the_log_of_a_runner_is_neither_read_nor_changed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    script, log = tmp_path / "script.py", tmp_path / "run.log"
    script.write_text(LOGGED)
    log.touch(0o644)
    with log.open("w") as file:
        subprocess.run([sys.executable, script], stdout=file, stderr=file, timeout=100)
    said = log.read_text()
    assert said.startswith("the log begins")
    assert said.count("GraderError: hidden from readers; ") == 2, said
    assert "424242" not in said
    forged = [line for line in said.splitlines() if "all is well" in line]
    assert len(forged) == 4
    assert all(line.startswith("attempt at-") for line in forged)
    assert all(line.endswith("well\\r\\x1b[2K") for line in forged)
    assert said.count("grader | the grader says it") == 2


@needs_bwrap
@pytest.mark.parametrize("guarded", [True, False])
def test_an_agent_of_a_script_is_brought_behind_the_wall(tmp_path: Path, guarded: bool) -> None:
    tmp_path.chmod(0o755)
    script = tmp_path / "script.py"
    guard = 'if __name__ == "__main__":\n    ' if guarded else ""
    script.write_text(f"{SCRIPT}{guard}main()")
    run = python(script, timeout=100)
    said = " ".join((run.stdout + run.stderr).split())
    if guarded:
        assert run.returncode == 0, said
        assert "2 succeeded, mean reward 0.500" in said
    else:
        assert run.returncode != 0
        assert 'put what runs under `if __name__ == "__main__":`' in said


@needs_bwrap
async def test_an_agent_of_a_module_that_is_gone_is_refused_by_name(monkeypatch) -> None:
    @agl.rollout
    def lost(task: Any) -> None: ...

    lost.__module__ = "gone"
    monkeypatch.setattr(sys, "lost", lost, raising=False)  # no place to look in its stead
    with pytest.raises(ConfigError, match="agent 'lost' cannot be brought into a sandbox"):
        await process.ProcessSandbox().start(lost, agl.OtelTracer())


@needs_bwrap
async def test_an_agent_of_a_function_is_refused_by_name() -> None:
    @agl.rollout
    def local(task: Any) -> None: ...

    runner = agl.LitAgentRunner(agl.OtelTracer(), isolation="process")
    with (
        runner.run_context(agent=local, store=agl.InMemoryLightningStore()),
        pytest.raises(ConfigError, match="agent 'local' cannot be brought into a sandbox"),
    ):
        await runner.iter()
