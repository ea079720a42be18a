"""Stores that real runs made, and the page over them."""

import json
import shutil
from pathlib import Path

import pytest
from tests import fork_server
from tests.interpreter import python

from .stores import apart, fill_with_failures, fill_with_hostile, filled

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder of a real GRPO run of five steps, made once."""
    home = tmp_path_factory.mktemp("trained")
    script = ROOT / "tests/seams/grpo_run.py"
    done = fork_server.run([script, home, json.dumps({"steps": 5})])
    assert done.returncode == 0, done.stderr
    shutil.move(home / "store.db", home / "run" / "store.db")
    return home / "run"


@pytest.fixture(scope="session", params=["apo", "gepa"])
def prompted(request, tmp_path_factory):
    """The folder of a real prompt run, made once per algorithm; its name is the algorithm's."""
    pytest.importorskip("agl_apo")
    if request.param == "gepa":
        pytest.importorskip("gepa")
    home = tmp_path_factory.mktemp("prompted") / request.param
    home.mkdir()
    script = Path(__file__).with_name("prompt_run.py")
    done = python(script, request.param, home)
    assert done.returncode == 0, done.stderr
    return home


@pytest.fixture(scope="session")
def failures(tmp_path_factory):
    """The file of a store with every kind of failure."""
    path = tmp_path_factory.mktemp("failures") / "failures.db"
    filled(path, fill_with_failures)
    return path


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    """The file of a store of hostile text."""
    path = tmp_path_factory.mktemp("hostile") / "hostile.db"
    filled(path, fill_with_hostile)
    return path


@pytest.fixture
def serve():
    """Serves the file of a store, or all under ``agl-runs``; the address, open to everybody."""
    from agl_ui.data_sources import DataSources, file_source
    from agl_ui.serving import Server

    servers = []

    def start(file=None, **options):
        sources = DataSources(file and file_source(Path(file)))
        server = Server(sources, **{"is_open": True, **options})
        servers.append((server, sources))
        return server.start().rstrip("/")

    yield start
    for server, sources in servers:
        server.stop()
        apart(sources.close())
