"""For all tests."""

import contextlib
import gc
import logging
import os
import signal
from collections.abc import Generator
from typing import NamedTuple

import pytest

from agl.cli import main
from agl.utils.logs import stderr_console

from . import cpu_budget, distributions, fork_server, over_postgres, run_agents, run_project

# torch's threads wait for each other by spinning: on a busy machine one test took 36 CPU seconds.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What a shell without job control runs in the background ignores SIGINT, and so do its children,
# unless a handler is set; tests interrupt them.
signal.signal(signal.SIGINT, signal.default_int_handler)

with contextlib.suppress(ImportError):  # not every session has it
    from hypothesis import settings

    # A machine may be busy. On a push the same examples each time, at night others.
    settings.register_profile("push", deadline=None, max_examples=25, derandomize=True)
    settings.register_profile("nightly", deadline=None, max_examples=300)
    settings.load_profile("push")


def pytest_configure(config: pytest.Config) -> None:
    fork_server.folder()  # so that all workers share what it starts
    for plugin in (cpu_budget, distributions, over_postgres, run_agents, run_project):
        config.pluginmanager.register(plugin)


def pytest_addoption(parser: pytest.Parser) -> None:
    told = "of tests/{core,libs,contract,house} only what is marked as asking for plugins"
    parser.addoption("--only-plugins-of-core", action="store_true", help=told)
    told = "keep the stores of tests in PostgreSQL; leaves out what is marked as asking for a file"
    parser.addoption("--store", choices=["postgres"], help=told)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays to the end: no garbage is looked for in it, then or
    later. With torch that takes a second each time, and in a forked process a copy of all memory.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With all plugins installed, what tests-core runs anyway is left out."""
    if not config.getoption("--only-plugins-of-core"):
        return
    core = tuple(f"tests/{name}/" for name in ("core", "libs", "contract", "house"))
    left = [
        item
        for item in items
        if item.nodeid.startswith(core) and item.get_closest_marker("plugins") is None
    ]
    items[:] = [item for item in items if item not in set(left)]
    config.hook.pytest_deselected(items=left)


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        item.add_marker("drawn")


@pytest.fixture(autouse=True)
def _log_as_before():
    """What a test sets up of agl's log, as each command does, ends with the test; and so does the
    console, which knows from its first line whether it has colours.
    """
    logger = logging.getLogger("agl")
    level, propagates, handlers = logger.level, logger.propagate, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.propagate, logger.handlers[:] = propagates, handlers
    stderr_console.cache_clear()


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The test's own folder, which is that of the process meanwhile."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def store(memory_store):
    return memory_store


class Result(NamedTuple):
    """How a command ended, and what it printed."""

    code: object
    out: str
    err: str


@pytest.fixture
def agl(capsys):
    """Runs a command of ``agl`` in this process."""

    def call(*arguments: str) -> Result:
        with pytest.raises(SystemExit) as caught:
            main(list(arguments))
        return Result(caught.value.code, *capsys.readouterr())

    return call
