"""Somebody else's algorithm, installed beside agl-runs, trains by its name in a config."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from filelock import FileLock
from tests.stores import opened

from agl.types import PromptTemplate

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "third-party-plugin"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    # Nothing of this environment may leak into the clean one.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "AGL_"))}
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True,
        timeout=240,
    )  # fmt: skip


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts folder of a new environment with the core and the example.

    It takes half a minute: the workers of pytest-xdist make one together.
    """
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if is_worker else base) / "third-party"
    scripts = folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    with FileLock(f"{folder}.lock"):
        if not (folder / "done").exists():
            install(folder, scripts)
            (folder / "done").touch()
    return scripts


def install(folder: Path, scripts: Path) -> None:
    # From a copy, so that no build leaves anything in the tree.
    copy = shutil.copytree(EXAMPLE, folder / "example", ignore=shutil.ignore_patterns("agl-runs"))
    venv.create(folder / "venv", with_pip=True)
    done = run(scripts / "python", ROOT / "install.py", "--quiet", "agl-runs", copy)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("agl.yaml", "greeter.py", "tasks.jsonl"):
        shutil.copy(EXAMPLE / name, tmp_path)
    return tmp_path


def test_installed_plugin_is_listed_and_described(clean: Path) -> None:
    listed = run(clean / "agl", "plugins", "--check", "--json")
    rows = {(row["kind"], row["name"]): row for row in json.loads(listed.stdout)}
    row = rows["algorithm", "bestprompt"]
    assert (row["distribution"], row["state"]) == ("agl-bestprompt", "ok")
    assert {row["state"] for row in rows.values()} == {"ok"}
    shown = json.loads(run(clean / "agl", "plugins", "show", "bestprompt", "--json").stdout)
    [prompts, resource] = shown["options"]
    assert (prompts["type"], prompts["required"]) == ("list[str]", True)
    assert prompts["doc"] == "Candidates, tried in order; a tie keeps the earlier one."
    assert resource["default"] == "prompt"


def test_plugin_trains_by_its_name_in_a_config(clean: Path, project: Path) -> None:
    done = run(clean / "agl", "run", "agl.yaml", "run_dir=out", cwd=project)
    assert done.returncode == 0, done.stderr
    assert "12 succeeded" in done.stdout
    assert "Best prompt" in done.stderr

    async def latest() -> PromptTemplate:
        async with opened(project / "out" / "store.db") as store:
            update = await store.get_latest_resources()
            prompt = update.resources["prompt"]
            assert isinstance(prompt, PromptTemplate)
            return prompt

    # Welcome and name for two of three guests: (1 + 1 + 0.5) / 3, more than any other.
    assert asyncio.run(latest()).template == "Welcome, dear {guest}!"


def test_core_alone_brings_nothing_heavy(clean: Path) -> None:
    listed = json.loads(run(clean / "python", "-m", "pip", "list", "--format=json").stdout)
    names = {entry["name"].lower() for entry in listed}
    ours = {name for name in names if name.startswith("agl-")}
    assert ours == {"agl-bestprompt", "agl-core", "agl-runs", "agl-sqlite"}
    assert not names & {"fastapi", "uvicorn", "aiohttp", "httptools", "opentelemetry-proto"}
    assert not names & {"torch", "litellm", "openai", "agentops", "transformers", "ray"}
