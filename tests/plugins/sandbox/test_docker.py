"""The docker sandbox, as far as it goes without a daemon: processes stand in for containers."""

import asyncio
import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import agl
from agl.errors import ConfigError
from agl_sandbox import docker, filesystem_view, shipping
from agl_sandbox.docker import DockerSandbox
from agl_sandbox.forwarding import Forwarder, Routes, routes_to

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs Unix sockets")
sys.path.insert(0, str(Path(__file__).parents[2] / "attack" / "walled"))
import attacks  # noqa: E402

STAND_IN = """#!{python}
import json, os, signal, sys
verb, folder = sys.argv[1], {folder!r}
if verb == "version":
    print("0")
elif verb == "kill":
    os.killpg(int(open(os.path.join(folder, sys.argv[2])).read()), signal.SIGKILL)
else:
    name = sys.argv[sys.argv.index("--name") + 1]
    with open(os.path.join(folder, name), "w") as file:
        file.write(str(os.getpid()))
    command = [word for word in sys.argv[sys.argv.index("image") + 1 :] if word != "-I"]
    env = {{"PATH": os.environ["PATH"], "PYTHONPATH": {path!r}}}
    os.execve(command[0], command, env)
"""


class StandInSandbox(DockerSandbox):
    """Its containers are processes of this machine."""

    async def start(self, agent: agl.LitAgent[Any], tracer: agl.Tracer) -> None:
        self._shipment = shipping.pack(agent, tracer, by_name=True)
        self.findings = {}


@pytest.fixture
def program(tmp_path):
    """In the place of ``docker``."""
    path = tmp_path / "docker"
    paths = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    path.write_text(STAND_IN.format(python=sys.executable, folder=str(tmp_path), path=paths))
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def run(program, store, monkeypatch):
    """Runs one task, and gives its rollout and spans."""
    listen = docker._sockets

    def listen_where_containers_are(folder, count):
        monkeypatch.setattr(docker, "SOCKETS", folder)
        return listen(folder, count)

    monkeypatch.setattr(docker, "_sockets", listen_where_containers_are)

    async def run_one(task: Any, timeout: float | None = None, **resources: Any) -> Any:
        await store.add_resources(resources)
        config = agl.RolloutConfig(timeout_seconds=timeout)
        queued = await store.enqueue_rollout(task, config=config)
        sandbox = StandInSandbox("image", docker=program, python=sys.executable)
        runner = agl.LitAgentRunner(agl.OtelTracer(), max_rollouts=1, isolation=sandbox)
        with runner.run_context(agent=attacks.agent, store=store):
            await runner.iter()
        rollout = await store.get_rollout_by_id(queued.rollout_id)
        return rollout, await store.query_spans(queued.rollout_id)

    return run_one


async def test_an_attempt_gives_its_reward_its_spans_and_what_it_prints(run, capsys):
    rollout, spans = await run({"do": "work_honestly"})
    assert rollout.status == "succeeded", rollout.attempt.error.traceback
    assert agl.get_object_value(spans[0]) == {"gained": "mine"}
    assert agl.find_final_reward(spans) == 1.0
    printed = f"attempt {rollout.attempt.attempt_id} | as shells do\n"
    assert capsys.readouterr().err.endswith(printed)


async def test_connections_come_out_through_the_sockets(run, monkeypatch):
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]

        async def outside(host: str, wanted: int) -> Any:
            assert (host, wanted) == ("127.9.9.9", port)
            return await asyncio.open_connection("127.0.0.1", port)

        def forwarder(routes: Routes) -> Forwarder:
            return Forwarder([partial(outside, *target) for target in routes.listen.values()])

        monkeypatch.setattr(Routes, "forwarder", forwarder)
        # The model does not listen at this address: who reaches it came through the sockets.
        llm = agl.LLM(endpoint=f"http://127.9.9.9:{port}/v1", model="echo")
        rollout, spans = await run({"do": "ask_model"}, llm=llm)
    assert rollout.status == "succeeded", rollout.attempt.error.traceback
    assert agl.get_object_value(spans[0]) == {"gained": "hello"}


async def test_a_container_past_its_time_is_killed(run, tmp_path):
    rollout, _ = await run({"do": "stay", "mark": "docker-stay", "seconds": 300}, timeout=8)
    assert rollout.attempt.status == "timeout"
    (name,) = [name for name in os.listdir(tmp_path) if name.startswith("agl-")]
    with open(tmp_path / name) as file:  # noqa: ASYNC230 (a few bytes)
        assert not psutil.pid_exists(int(file.read()))
    for process in psutil.process_iter(["cmdline"]):  # a container would have held it
        if "docker-stay" in (process.info["cmdline"] or ()):
            process.kill()


def edit(program, *changes):
    """Have a stand-in do something else; each change as (what stands there, what shall)."""
    path = Path(program)
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


EXEC = "os.execve(command[0], command, env)"


async def test_the_program_gets_the_time_to_remove_its_container(run, program, tmp_path):
    lines = ["import subprocess, time", "done = subprocess.run(command, env=env).returncode"]
    lines += ["time.sleep(0.3)", "os.remove(os.path.join(folder, name))", "sys.exit(done)"]
    edit(program, (EXEC, "\n    ".join(lines)))
    rollout, _ = await run({"do": "work_honestly"})
    assert rollout.status == "succeeded", rollout.attempt.error.traceback
    assert not [name for name in os.listdir(tmp_path) if name.startswith("agl-")]


async def test_a_program_that_does_not_end_is_killed_and_its_container_removed(
    run, program, tmp_path, monkeypatch
):
    monkeypatch.setattr("agl_sandbox.docker.REMOVAL_SECONDS", 0.1)
    hanging = "import subprocess, time; subprocess.run(command, env=env); time.sleep(300)"
    removing = 'elif verb == "rm":\n    os.remove(os.path.join(folder, sys.argv[3]))\nelse:'
    edit(program, (EXEC, hanging), ("else:", removing))
    rollout, _ = await run({"do": "work_honestly"})
    assert rollout.status == "succeeded", rollout.attempt.error.traceback
    assert not [name for name in os.listdir(tmp_path) if name.startswith("agl-")]


async def test_what_docker_itself_cannot_do_is_no_failure_of_the_agent(run, program):
    edit(program, (EXEC, "os._exit(125)"))
    rollout, _ = await run({"do": "nothing"})
    assert (rollout.status, rollout.attempt.error.boundary) == ("failed", "resources")


WALLED = ["bwrap", "--ro-bind", "/", "/", "--unshare-all", "--proc", "/proc", "--dev", "/dev"]
WALLED += ["--tmpfs", "/tmp", "--tmpfs", tempfile.gettempdir()]


def wall_in(program: str, variables: list[str]) -> None:
    """Have its containers see nothing of this machine, and an environment of their own."""
    python = [*map(str, filesystem_view.shown_paths(()))]
    hidden = (Path("/tmp"), Path(tempfile.gettempdir()))
    own = [one for one in python if {*hidden} & {*Path(one).parents}]  # this clone may lie there
    walled = [*WALLED, *(word for one in own for word in ("--ro-bind", one, one))]
    walled += ["/usr/bin/env", "-i", *variables]
    command = (
        f"command = {walled!r} + [f'{{k}}={{v}}' for k, v in env.items()] + command\n"
        "    os.execvp(command[0], command)"
    )
    edit(program, (EXEC, command))


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
@pytest.mark.parametrize("leaks", [False, True])
async def test_variables_of_the_image_are_open_only_as_the_runners(leaks, program, monkeypatch):
    monkeypatch.setenv("AGL_TEST_API_KEY", "sk-1234")
    wall_in(program, ["OF_THE_IMAGE=1", f"AGL_TEST_API_KEY={'sk-1234' if leaks else 'none'}"])
    sandbox = DockerSandbox("image", docker=program, python=sys.executable)
    if leaks:
        with pytest.raises(ConfigError, match=r"own environment \(open: AGL_TEST_API_KEY\)$"):
            await sandbox.start(attacks.agent, agl.OtelTracer())
    else:
        await sandbox.start(attacks.agent, agl.OtelTracer())
        assert {*sandbox.findings.values()} == {"closed"}


async def test_a_container_that_is_none_is_refused_by_the_probe(program):
    sandbox = DockerSandbox("image", docker=program, python=sys.executable)
    with pytest.raises(ConfigError, match=r"the wall does not hold: .*connect to a port"):
        await sandbox.start(attacks.agent, agl.OtelTracer())


def test_the_command_line_forbids_what_docker_can_forbid(program):
    sandbox = DockerSandbox("image", docker=program, memory_mb=256, cpus=1.5, env=["TERM"])
    routes = routes_to([("model.example", 443)])
    command = sandbox.command("agl-1", routes, "/sockets")
    text = " ".join(command)
    for options in (
        "run --rm --interactive --init --name agl-1",
        "--memory 256m --pids-limit 256",
        "--tmpfs /tmp:rw,nosuid,nodev,size=512m --cpus 1.5",
        "--read-only --user 65534:65534 --cap-drop ALL --security-opt no-new-privileges",
        "--network none --volume /sockets:/run/agl --env TERM",
        "--add-host model.example:127.1.0.1 image python -I -c",
    ):
        assert options in text
    alone = sandbox.command("agl-2", routes_to([]), "/sockets")
    assert "--volume" not in alone


def test_without_docker_it_says_what_to_do(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match=r"no program 'docker' here.*isolation 'process'"):
        agl.Trainer(
            runner={"isolation": {"type": "agl_sandbox.docker:DockerSandbox", "image": "x"}}
        )


async def test_without_a_daemon_it_says_what_to_do(tmp_path):
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
    program.chmod(0o755)
    sandbox = DockerSandbox("image", docker=str(program))
    with pytest.raises(ConfigError, match=r"Cannot connect to the Docker daemon\. Start its"):
        await sandbox.start(attacks.agent, agl.OtelTracer())


async def test_an_address_that_containers_cannot_have_is_refused(run):
    llm = agl.LLM(endpoint="http://10.7.7.7:1/v1", model="m")
    rollout, _ = await run({"do": "work_honestly"}, llm=llm)
    assert "a container cannot be led to 10.7.7.7" in rollout.attempt.error.message
