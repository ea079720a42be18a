"""One rollout of an agent that is pointed at the gateway, and what came of it."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scene import AGENT

import agl
import agl_gateway
from agl_adapters import TraceToRows
from agl_records.calls.reader import model_calls
from agl_records.row_builder import RowSet
from agl_records.training_data import ModelCall
from agl_testing.echo_llm import EchoLLM

Answer = Callable[[dict[str, Any]], Any]
"""What the model's server answers to a request."""


@dataclass(frozen=True)
class Ran:
    """What came of a rollout, which got the reward 1.

    Args:
        text: What the agent said last.
        calls: Those of the model.
        rows: What can be learned from.
    """

    text: str
    calls: list[ModelCall]
    rows: RowSet

    def results(self) -> list[Any]:
        """Those of the tools, as the last call had them."""
        return [m["content"] for m in self.calls[-1].messages if m["role"] == "tool"]


async def run_at_gateway(store, answer, agent, model="echo"):
    """Run an agent, which is called with its base address and with the attempt's ids."""
    async with gateway_of(answer, store, model) as proxy:
        rollout = await store.start_rollout(input="task")
        ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
        async with agl.OtelTracer().trace_context(store=store, **ids):
            text = await agent(proxy.as_resource(**ids).endpoint, ids)
            agl.emit_reward(1.0)
    spans = list(await store.query_spans(rollout.rollout_id))
    return Ran(text, model_calls(spans), TraceToRows(agent_match=AGENT).adapt(spans))


@contextlib.asynccontextmanager
async def gateway_of(answer, store, model="echo", **options):
    """A gateway before a server that answers so, which it calls by this name."""
    with EchoLLM(answer) as llm:
        params = {"model": "echo", "api_base": llm.url}
        entry: Any = {"model_name": model, "litellm_params": params}
        proxy = agl_gateway.LLMProxy(model_list=[entry], store=store, **options)
        await proxy.start()
        try:
            yield proxy
        finally:
            await proxy.stop()


def calls_in_turn(*turns: Any) -> Answer:
    """Answer with these, by how many answers the conversation already has."""

    def answer(request: dict[str, Any]) -> Any:
        said = sum(message["role"] == "assistant" for message in request["messages"])
        turn = turns[said]
        return turn if isinstance(turn, str) else tool_call(f"call_{said}", *turn)

    return answer


def tool_call(call_id: str, name: str, arguments: dict[str, Any] | str) -> dict[str, Any]:
    """A message that calls a tool."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}
