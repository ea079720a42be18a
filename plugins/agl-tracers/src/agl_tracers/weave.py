"""``WeaveTracer``: the calls that Weave records, as spans of their rollouts."""

import contextlib
import importlib
import logging
import os
import threading
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

import agl
from agl.errors import TracerError
from agl_tracers.backend import require_backend
from agl_tracers.instrumentation import Instrumentation
from agl_tracers.instrumented import InstrumentedTracer
from agl_tracers.weave_streams import add_chunk, add_event, last_message

logger = logging.getLogger("agl.tracers")

# Weave's own patchers, by library. Its import hook is not used: it is silent where one fails.
PATCHERS = {
    "anthropic": "anthropic.anthropic_sdk:get_anthropic_patcher",
    "autogen": "autogen.autogen_sdk:get_autogen_patcher",
    "cohere": "cohere.cohere_sdk:get_cohere_patcher",
    "crewai": "crewai.crewai_sdk:get_crewai_patcher",
    "dspy": "dspy.dspy_sdk:get_dspy_patcher",
    "groq": "groq.groq_sdk:get_groq_patcher",
    "langchain": "langchain.langchain:langchain_patcher",
    "litellm": "litellm.litellm:get_litellm_patcher",
    "llama_index": "llamaindex.llamaindex:llamaindex_patcher",
    "mistralai": "mistral.mistral_sdk:get_mistral_patcher",
    "openai": "openai.openai_sdk:get_openai_patcher",
    # The other one, for OpenTelemetry, leaves out tool calls and the calls of the client.
    "openai_agents": "openai_agents.patcher:get_openai_agents_patcher",
    "smolagents": "smolagents.smolagents_sdk:get_smolagents_patcher",
}

SETTINGS = {
    "WANDB_ERROR_REPORTING": "false",
    "WEAVE_CAPTURE_CLIENT_INFO": "false",
    "WEAVE_CAPTURE_CODE": "false",
    "WEAVE_CAPTURE_SYSTEM_INFO": "false",
    "WEAVE_PRINT_CALL_LINK": "false",
}
"""Environment variables that Weave reads at every call; those that are set already stay."""


PLAIN = frozenset({str, int, float, bool, type(None)})


class WeaveTracer(InstrumentedTracer):
    """Weave's integrations and ``@weave.op``; nothing is sent.

    ``weave.init`` is never called. In place of W&B's server stands an object that makes a span of
    each call: named as the op, with its inputs and its output under
    ``agentlightning.operation.input`` and ``.output``.

    Args:
        libraries: Which to instrument (``openai``, ``langchain``, ``openai_agents``, ...); by
            default all. Functions with ``@weave.op`` are always traced.

    Raises:
        BrokenComponentError: Weave is not installed, or in another version.
        ConfigError: One of ``libraries`` is unknown.
    """

    def __init__(self, libraries: Sequence[str] | None = None) -> None:
        require_backend("weave", "weave", ">=0.54,<0.55")
        available = [Instrumentation(name, start=partial(start, name)) for name in PATCHERS]
        super().__init__(available, libraries)

    def init_worker(
        self, worker_id: int, store: agl.LightningStore | None = None, *args: Any, **kwargs: Any
    ) -> None:
        """See ``InstrumentedTracer.init_worker``.

        Raises:
            TracerError: ``weave.init`` was called in this process, or Weave is switched off.
        """
        connect()
        super().init_worker(worker_id, store, *args, **kwargs)

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        """See ``InstrumentedTracer.teardown_worker``; without a client Weave records nothing."""
        super().teardown_worker(worker_id, *args, **kwargs)
        disconnect()

    def create_span(self, *args: Any, **kwargs: Any) -> agl.SpanCoreFields:
        """See ``Tracer.create_span``; a span within a Weave call is its child."""
        with within_current_call():
            return super().create_span(*args, **kwargs)

    @contextlib.contextmanager
    def operation_context(self, *args: Any, **kwargs: Any) -> Generator[agl.SpanRecordingContext]:
        """See ``Tracer.operation_context``; an operation within a Weave call is its child."""
        with within_current_call(), super().operation_context(*args, **kwargs) as recording:
            yield recording


_lock = threading.Lock()
_num_users = 0
_client: Any = None


def connect() -> None:
    """Give Weave a client whose server is this process."""
    global _client, _num_users
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    context = importlib.import_module("weave.trace.context.weave_client_context")
    settings = importlib.import_module("weave.trace.settings")
    # Who imported Weave before us has it report errors, and every session, to Sentry.
    importlib.import_module("weave.telemetry.trace_sentry").global_trace_sentry._disabled = True
    if settings.should_disable_weave():
        raise TracerError("WEAVE_DISABLED is set: Weave would record nothing. Unset it")
    with _lock:
        current = context.get_weave_client()
        if current is not None and current is not _client:
            raise TracerError(
                "weave.init was called in this process, and Weave has one client per process. Call "
                "weave.finish() first, or use another tracer"
            )
        if _client is None:
            _client = local_client()
        context.set_weave_client_global(_client)
        _num_users += 1


def disconnect() -> None:
    """Take the client away when nobody uses it any more."""
    global _num_users
    context = importlib.import_module("weave.trace.context.weave_client_context")
    with _lock:
        _num_users -= 1
        if _num_users == 0 and context.get_weave_client() is _client:
            context.set_weave_client_global(None)


def local_client() -> Any:
    """A Weave client that does its work at once, in the thread and context of the call."""
    from agl_tracers.weave_server import LocalServer

    weave_client = importlib.import_module("weave.trace.weave_client")
    futures = importlib.import_module("weave.trace.concurrent.futures")

    class LocalClient(weave_client.WeaveClient):
        """Looks for objects to save where there can be some."""

        def _save_nested_objects(self, obj: Any, name: str | None = None) -> Any:
            # Weave spends some 20 microseconds on each number: half a second on a long answer's
            # token ids, in the agent's own thread.
            if type(obj) in PLAIN or (type(obj) is list and all(type(i) in PLAIN for i in obj)):
                return None
            return super()._save_nested_objects(obj, name)

    client = LocalClient("agl", "local", LocalServer(), ensure_project_exists=False)
    client.future_executor = futures.FutureExecutor(max_workers=0)
    client.future_executor_fastlane = futures.FutureExecutor(max_workers=0)
    if client._wal is not None:
        raise TracerError("WEAVE_ENABLE_WAL is set: Weave would write to a file. Unset it")
    return client


def within_current_call() -> contextlib.AbstractContextManager[Any]:
    """Within the block the current span is that of the current Weave call, if that is nearer."""
    from opentelemetry import trace

    context = importlib.import_module("weave.trace.context.call_context")
    call = context.get_current_call()
    span = None if call is None or _client is None else _client.server.nearest(call.id)
    if span is None:
        return contextlib.nullcontext()
    return trace.use_span(span, record_exception=False, set_status_on_exception=False)


def start(library: str) -> None:
    """Let Weave wrap a library.

    Raises:
        TracerError: It finds nothing of what it wraps.
    """
    path, _, name = PATCHERS[library].partition(":")
    module: Any = importlib.import_module(f"weave.integrations.{path}")
    if library == "openai":
        module.openai_accumulator = add_chunk
    elif library == "anthropic":
        module.anthropic_accumulator = add_event
        module.anthropic_stream_accumulator = last_message
    found: Any = getattr(module, name)
    patcher: Any = found() if callable(found) else found
    if patcher.attempt_patch():
        return
    parts = getattr(patcher, "patchers", [])
    missing = [each for each in parts if getattr(each, "_original_value", True) is None]
    if len(missing) == len(parts):
        raise TracerError(f"Weave finds nothing in this version of {library} that it wraps")
    names = ", ".join(sorted({each._attribute_name for each in missing}))
    logger.info("Weave wraps %s without %s, which this version does not have", library, names)
