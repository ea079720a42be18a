"""Real trainings with one engine: ``pytest tests/unsloth --engine unsloth``; the default is trl."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "examples" / "quickstart"))

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore",
}


def pytest_addoption(parser):
    parser.addoption("--engine", default="trl", choices=["trl", "unsloth"])


@pytest.fixture(scope="session")
def engine(request):
    return request.config.getoption("--engine")


@pytest.fixture(scope="session")
def quiet():
    """The environment of child processes."""
    return {**os.environ, **QUIET}


def save_model(folder, seed=0):
    """The quickstart's model with random weights, and its tokenizer."""
    from world import build_model, build_tokenizer

    build_model(seed).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def learn(engine, quiet, tmp_path):
    """Starts the quickstart's task with an algorithm of ours, in a process of its own."""

    save_model(tmp_path / "model")

    def start(algorithm, **options):
        options = {"engine": engine, "run_dir": str(tmp_path / "run"), **options}
        command = [sys.executable, str(HERE / "find_the_cat.py"), str(tmp_path), algorithm]
        with (tmp_path / "output.log").open("ab") as log:
            return subprocess.Popen(
                [*command, json.dumps(options)], stdout=log, stderr=log, env=quiet
            )

    def run(algorithm, **options):
        process = start(algorithm, **options)
        code = process.wait()
        assert code == 0, (tmp_path / "output.log").read_text()[-4000:]
        return json.loads((tmp_path / "run/summary.json").read_text())

    run.start, run.folder = start, tmp_path
    return run
