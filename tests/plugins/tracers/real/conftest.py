"""Every test here runs with one tracer: ``pytest tests/plugins/tracers/real --tracer agentops``."""

import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from agl.errors import BrokenComponentError

sys.path.insert(0, str(Path(__file__).parent))

import closed_network


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tracer", default="otel", help="which tracer the tests use")
    parser.addoption("--captured", help="file into which to write what was captured")


def pytest_configure(config: pytest.Config) -> None:
    sys.addaudithook(closed_network.watch)
    config.stash[CAPTURED] = {}


CAPTURED = pytest.StashKey[dict[str, Any]]()


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--captured")
    if path:
        tracer = str(session.config.getoption("--tracer"))
        found = {"libraries": libraries(tracer), "frameworks": session.config.stash[CAPTURED]}
        Path(path).write_text(json.dumps(found, indent=1) + "\n")


LIBRARIES = {
    "otel": "opentelemetry-sdk",
    "openinference": "openinference-instrumentation",
    "otel-genai": "opentelemetry-instrumentation-genai-",
}
"""Tracer: how the names of its libraries begin, where that is not its own name."""


def libraries(tracer: str) -> dict[str, str]:
    """What makes the spans of a tracer here, with versions."""
    prefix = LIBRARIES.get(tracer, tracer)
    found = {each.name: each.version for each in metadata.distributions()}
    return {name: version for name, version in found.items() if name.startswith(prefix)}


@pytest.fixture
def captured_of(request):
    """What is known of a framework, which goes into the file of ``--captured``."""

    def of(framework: Any) -> dict[str, Any]:
        first = {"versions": framework.versions()}
        return request.config.stash[CAPTURED].setdefault(framework.name, first)

    return of


@pytest.fixture(scope="session")
def tracer_name(request):
    return str(request.config.getoption("--tracer"))


@pytest.fixture(scope="session")
def process_tracer(tracer_name):
    """One for the process: instrumentations are."""
    from agl.plugins.registry import load

    try:
        tracer = load("agl.tracers", tracer_name)()
    except BrokenComponentError as error:
        pytest.skip(str(error))
    with tracer.lifespan():
        yield tracer


@pytest.fixture
def once(tracer_name):
    """For what is the same under every tracer, as the gateway's spans are."""
    if tracer_name != "otel":
        pytest.skip("it is the same under every tracer")


@pytest.fixture
def tracer(process_tracer):
    return process_tracer


@pytest.fixture(autouse=True)
def keys_are_there_and_nothing_leaves(monkeypatch, tracer_name):
    """As on a user's machine: API keys are set. Nobody may use them."""
    for name in ("AGENTOPS_API_KEY", "OPENAI_API_KEY", "WANDB_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "sk-must-not-leave")
    closed_network.left.clear()
    monkeypatch.setenv("CREWAI_DISABLE_TELEMETRY", "true")
    # Of the framework itself; the other tracers replace where it sends its traces.
    if tracer_name == "otel":
        monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    yield
    assert closed_network.left == []
