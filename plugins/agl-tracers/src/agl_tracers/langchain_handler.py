"""A LangChain callback handler: the agent, its nodes and its tools as spans.

AgentOps has one, which makes each span the current one in a callback. LangChain runs callbacks in
other tasks and threads, where that cannot be undone again; and it knows no agent's name.
"""

from typing import Any
from uuid import UUID

from langchain_core.callbacks.base import BaseCallbackHandler  # pyright: ignore[reportMissingImports]
from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode

from agl.semconv import ModelCallAttributes as Key


class AgentHandler(BaseCallbackHandler):
    """Spans of chains and tools; the model calls among them are the client's own spans."""

    run_inline = True

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("agl_tracers.langchain")
        self._open: dict[UUID, Span] = {}

    def on_chain_start(
        self,
        serialized: Any,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        name = str(kwargs.get("name") or "chain")
        attributes = {Key.OPERATION.value: "invoke_workflow"}
        if parent_run_id is None:
            attributes = {Key.OPERATION.value: "invoke_agent", Key.AGENT_NAME.value: name}
        self._start(name, attributes, run_id, parent_run_id)

    def on_tool_start(
        self,
        serialized: Any,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        name = str(kwargs.get("name") or (serialized or {}).get("name") or "tool")
        attributes = {
            Key.OPERATION.value: "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.arguments": input_str,
        }
        self._start(name, attributes, run_id, parent_run_id)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._end(run_id, Status(StatusCode.OK))

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        if run_id in self._open:
            result = str(getattr(output, "content", output))
            self._open[run_id].set_attribute("gen_ai.tool.call.result", result)
        self._end(run_id, Status(StatusCode.OK))

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._end(run_id, Status(StatusCode.ERROR, str(error)))

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._end(run_id, Status(StatusCode.ERROR, str(error)))

    def _start(
        self, name: str, attributes: dict[str, str], run_id: UUID, parent_run_id: UUID | None
    ) -> None:
        parent = self._open.get(parent_run_id) if parent_run_id else None
        context = trace.set_span_in_context(parent) if parent else None
        self._open[run_id] = self._tracer.start_span(name, context, attributes=attributes)

    def _end(self, run_id: UUID, status: Status) -> None:
        span = self._open.pop(run_id, None)
        if span is not None:
            span.set_status(status)
            span.end()
