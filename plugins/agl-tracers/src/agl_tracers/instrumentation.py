"""Instrumentations of the process: each begins when its library is imported, and is there once."""

import importlib
import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

logger = logging.getLogger("agl.tracers")

MODULES = {"langchain": "langchain_core", "openai_agents": "agents"}
"""Module whose import begins an instrumentation, where it does not have the library's name."""


@dataclass(frozen=True)
class Instrumentation:
    """What makes spans of one library.

    Args:
        library: Its name.
        target: ``module:attribute`` of an OpenTelemetry instrumentor's class.
        start: Called instead of the instrumentor when the library is there.
    """

    library: str
    target: str = ""
    start: Callable[[], None] | None = field(default=None, compare=False)

    @property
    def module(self) -> str:
        """The module whose import begins it."""
        return MODULES.get(self.library, self.library)


_lock = threading.RLock()
_num_users: Counter[Instrumentation] = Counter()
_hooked: set[Instrumentation] = set()
_live: dict[Instrumentation, Any] = {}


def installed(prefix: str) -> list[Instrumentation]:
    """The instrumentors that are installed, of the modules that begin with ``prefix``."""
    return [
        Instrumentation(entry.name, entry.value)
        for entry in entry_points(group="opentelemetry_instrumentor")
        if entry.value.startswith(prefix)
    ]


def acquire(instrumentations: Iterable[Instrumentation]) -> None:
    """Begin them, each when its library is imported (now, if it is)."""
    import wrapt

    with _lock:
        for each in instrumentations:
            _num_users[each] += 1
            if each in _hooked:
                if each in _live or _num_users[each] > 1:
                    continue
                if each.module in sys.modules:
                    _start(each)
                continue
            _hooked.add(each)
            wrapt.register_post_import_hook(lambda _, each=each: _start(each), each.module)


def release(instrumentations: Iterable[Instrumentation]) -> None:
    """End those that nobody else uses, as far as their instrumentors can be undone."""
    with _lock:
        for each in instrumentations:
            _num_users[each] -= 1
            instrumentor = _live.get(each)
            if _num_users[each] == 0 and instrumentor is not None:
                instrumentor.uninstrument()
                del _live[each]


def _start(each: Instrumentation) -> None:
    with _lock:
        if each in _live or _num_users[each] == 0:
            return
        try:
            _live[each] = _started(each)
        # An import of the agent's must not fail because a tracer cannot follow.
        except Exception as error:
            logger.warning(
                "%s is imported and is not traced: %s: %s",
                each.library,
                type(error).__name__,
                error,
            )


def _started(each: Instrumentation) -> Any:
    if each.library == "openai_agents":
        stop_agents_upload()
    if each.start is not None:
        each.start()
        return None
    module, _, name = each.target.partition(":")
    instrumentor = getattr(importlib.import_module(module), name)()
    instrumentor.instrument(raise_exception_on_conflict=True)
    return instrumentor


def stop_agents_upload() -> None:
    """The Agents SDK sends its traces to OpenAI when there is a key; under a tracer it does not."""
    importlib.import_module("agents").set_trace_processors([])


def instrument_pydantic_ai() -> None:
    """Switch on the spans that Pydantic AI makes by itself."""
    importlib.import_module("pydantic_ai").Agent.instrument_all()


PYDANTIC_AI = Instrumentation("pydantic_ai", start=instrument_pydantic_ai)
