"""Pytest fixtures for authors of plugins; active wherever agl-testing is installed.

Nothing of agl is imported before a test asks for a fixture.
"""

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import pluggy

    from agl.store.memory import InMemoryLightningStore
    from agl_testing.echo_llm import EchoLLM


@pytest.fixture
def plugin_manager() -> "pluggy.PluginManager":
    """A manager with agl's hook specs and no plugin; ``HookCaller(manager=...)`` calls its hooks.

    ``plugin_manager.register(plugin)`` checks a plugin exactly as agl does when it loads one.
    """
    from agl.plugins.hooks import HookManager

    return HookManager()


@pytest.fixture
def memory_store() -> "Generator[InMemoryLightningStore]":
    """An empty store in memory, closed after the test."""
    from agl.store.memory import InMemoryLightningStore

    store = InMemoryLightningStore()
    yield store
    asyncio.run(store.close())


@pytest.fixture
def echo_llm() -> "Generator[EchoLLM]":
    """A small OpenAI-compatible server that echoes, at its ``url``, which ends in ``/v1``.

    It listens on a free port of 127.0.0.1 and ends with the test.
    """
    from agl_testing.echo_llm import EchoLLM

    with EchoLLM() as server:
        yield server
