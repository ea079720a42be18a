"""``AgentOpsTracer``: AgentOps' instrumentation, without AgentOps' service."""

import contextlib
import importlib
import inspect
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from agl.errors import TracerError
from agl.semconv import ModelCallAttributes as Key
from agl_tracers.backend import require_backend
from agl_tracers.instrumentation import PYDANTIC_AI, Instrumentation, stop_agents_upload
from agl_tracers.instrumented import InstrumentedTracer

logger = logging.getLogger("agl.tracers")

# AgentOps' own instrumentors, by library. Its import hook is not used: it instruments a library
# while that is half imported, and several of the instrumentors fail then. The one of LangGraph is
# not used either: its `Pregel.invoke` and `stream` fail without a span around them, and its nodes
# where they are no plain functions of the state, as those of `create_agent`.
INSTRUMENTORS = {
    "openai": "providers.openai:OpenaiInstrumentor",
    "openai_agents": "agentic.openai_agents:OpenAIAgentsInstrumentor",
    "anthropic": "providers.anthropic:AnthropicInstrumentor",
    "smolagents": "agentic.smolagents:SmolagentsInstrumentor",
}
STREAMS = "agentops.instrumentation.providers.openai.stream_wrapper"


class AgentOpsTracer(InstrumentedTracer):
    """AgentOps' instrumentors on the process's own OpenTelemetry provider; nothing is sent.

    ``agentops.init`` is never called, so there are neither exporters nor uploads, whatever API key
    is set. What AgentOps 0.4.21 misses is added: the calls of tools in answers, token ids and
    log-probabilities of vLLM's answers, ``chat.completions.parse``, and the Responses API.

    Its wrappers cannot all be taken off again: they stay until the process ends.

    Args:
        libraries: Which to instrument (``openai``, ``openai_agents``, ``anthropic``,
            ``smolagents``, ``pydantic_ai``); by default all.

    Raises:
        BrokenComponentError: AgentOps is not installed, or in another version.
        ConfigError: One of ``libraries`` is unknown.
    """

    def __init__(self, libraries: Sequence[str] | None = None) -> None:
        require_backend("agentops", "agentops", ">=0.4.21,<0.5")
        available = [Instrumentation(name, start=partial(start, name)) for name in INSTRUMENTORS]
        super().__init__([*available, PYDANTIC_AI], libraries)

    def get_langchain_handler(self) -> Any:
        """A LangChain callback handler with spans of the agent, its nodes and its tools.

        Use a new one for each run of an agent.
        """
        from agl_tracers.langchain_handler import AgentHandler

        return AgentHandler()


def start(library: str) -> None:
    """Begin AgentOps' instrumentor of a library, and mend it.

    Raises:
        TracerError: It finds nothing of what it wraps.
    """
    use_own_provider()
    if library == "openai_agents":
        stop_agents_upload()
    path, _, name = INSTRUMENTORS[library].partition(":")
    instrumentor = getattr(importlib.import_module(f"agentops.instrumentation.{path}"), name)()
    instrumentor.instrument(raise_exception_on_conflict=True)
    if wraps_nothing(instrumentor):
        raise TracerError(f"AgentOps finds nothing in this version of {library} that it wraps")
    if library == "openai":
        wrap_missed_methods()
        complete_answers()


def wraps_nothing(instrumentor: Any) -> bool:
    """Whether none of the methods is wrapped that it should wrap; AgentOps is silent about them."""
    import wrapt

    methods = getattr(getattr(instrumentor, "config", None), "wrapped_methods", ())
    found: list[Any] = []
    for each in methods:
        with contextlib.suppress(AttributeError, ImportError):
            owner = importlib.import_module(each.package)
            found.append(getattr(getattr(owner, each.class_name), each.method_name))
    return bool(methods) and not any(isinstance(each, wrapt.ObjectProxy) for each in found)


def use_own_provider() -> None:
    """Let AgentOps make its spans with the process's provider, and believe that it is set up."""
    from opentelemetry import trace

    core = importlib.import_module("agentops.sdk.core")
    core.tracer.provider = trace.get_tracer_provider()
    core.tracer._initialized = True


def wrap_missed_methods() -> None:
    """What AgentOps looks for in modules that current releases of openai do not have."""
    import wrapt
    from opentelemetry import trace

    streams = importlib.import_module(STREAMS)
    tracer = trace.get_tracer("agentops.instrumentation.openai")
    for module, method, wrapper in (
        ("chat.completions", "Completions.parse", "chat_completion_stream_wrapper"),
        ("chat.completions", "AsyncCompletions.parse", "async_chat_completion_stream_wrapper"),
        ("responses", "Responses.create", "responses_stream_wrapper"),
        ("responses", "AsyncResponses.create", "async_responses_stream_wrapper"),
    ):
        resources = importlib.import_module(f"openai.resources.{module}")
        class_name, _, function = method.partition(".")
        if not isinstance(getattr(getattr(resources, class_name), function), wrapt.ObjectProxy):
            wrapt.wrap_function_wrapper(resources, method, getattr(streams, wrapper)(tracer))


def complete_answers() -> None:
    """Add to AgentOps' spans of chat completions what it leaves out of them."""
    import wrapt

    streams = importlib.import_module(STREAMS)
    wrapt.wrap_function_wrapper(streams, "handle_chat_attributes", _attributes_with_ids)
    for name in ("OpenaiStreamWrapper", "OpenAIAsyncStreamWrapper"):
        wrapt.wrap_function_wrapper(streams, f"{name}._process_chunk", _collect_ids)
        wrapt.wrap_function_wrapper(streams, f"{name}._finalize_stream", _write_collected)


def _attributes_with_ids(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for read in (
        partial(wrapped, *args, **kwargs),
        partial(_of_answer, kwargs.get("return_value")),
    ):
        try:
            attributes |= read()
        except Exception:
            # Both trust the form of messages; a tracer fails no call that it watches.
            logger.warning(
                "a chat completion is not as AgentOps expects; its span lacks parts of it",
                exc_info=True,
            )
    return attributes


def _of_answer(answer: Any) -> dict[str, Any]:
    parse = getattr(answer, "parse", None)
    if parse is not None and not inspect.iscoroutinefunction(parse):
        answer = parse()  # of with_raw_response, which LangChain uses; the client keeps the result
    if not getattr(answer, "choices", None):
        return {}
    first = answer.choices[0]
    calls = [
        (call.id, call.function.name, call.function.arguments)
        for call in first.message.tool_calls or ()
        if call.type == "function"
    ]
    return {**_tool_call_attributes(calls), **_token_attributes(answer, first, first.logprobs)}


def _collect_ids(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    (chunk,) = args
    if not chunk.choices or chunk.choices[0].index != 0:
        return
    found = vars(instance).setdefault("_agl_tokens", {})
    new = _token_attributes(chunk, chunk.choices[0], chunk.choices[0].logprobs)
    for key, values in new.items():
        found[key] = [*found.get(key, []), *values]


def _write_collected(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
    # Before: AgentOps ends the span in it.
    calls = [
        (call["id"], call["function"]["name"], call["function"]["arguments"])
        for _, call in sorted(instance._tool_calls.items())
    ]
    tokens = vars(instance).get("_agl_tokens", {})
    instance._span.set_attributes({**_tool_call_attributes(calls), **tokens})
    wrapped(*args, **kwargs)


def _tool_call_attributes(calls: Sequence[tuple[str, str, str]]) -> dict[str, str]:
    """Of (id, name, arguments); AgentOps has them only as spans of their own."""
    return {
        f"gen_ai.completion.0.tool_calls.{index}.{key}": value
        for index, call in enumerate(calls)
        for key, value in zip(("id", "name", "arguments"), call, strict=True)
    }


def _token_attributes(answer: Any, choice: Any, logprobs: Any) -> dict[str, Any]:
    """Under the keys that agl-adapters reads; absent where the server sent nothing."""
    prompt_ids = getattr(answer, "prompt_token_ids", None) or getattr(
        choice, "prompt_token_ids", None
    )
    values = {
        Key.PROMPT_TOKEN_IDS: prompt_ids,
        Key.RESPONSE_TOKEN_IDS: getattr(choice, "token_ids", None),
        Key.RESPONSE_LOGPROBS: [each.logprob for each in (logprobs and logprobs.content) or ()],
    }
    return {key.value: list(value) for key, value in values.items() if value}
