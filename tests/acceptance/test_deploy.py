"""``deploy/``: the file is whole, and what its services run meets in one store.

There is no Docker here. The services' commands run as processes of this machine, with the addresses
of the containers replaced; the images are checked against the clone that they copy.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml

import agl
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
