"""JSON of very many brackets, which a model or an agent may write, ends no run."""

import json
import sys
from collections.abc import Generator
from typing import Any

import pytest
from opentelemetry import trace
from tests.models import entry

import agl
from agl_records.training_data import TrainedModel
from agl_testing.echo_llm import EchoLLM, RawReply

from .collecting import collect, rows_of, settled

openai = pytest.importorskip("openai")
pytest.importorskip("agl_gateway")
pytest.importorskip("agl_adapters")

POLICY = TrainedModel(name="policy")
DEEP = "[" * 100_000
USER = {"role": "user", "content": "which one"}
CALL = {"gen_ai.request.model": "policy", "gen_ai.prompt.0.role": "user"}


@pytest.fixture(scope="module", autouse=True)
def wrappers_go() -> Generator[None]:
    """AgentOps wraps clients of the whole process, and would record in the tests after these."""
    yield
    if (wrapping := sys.modules.get("agentops.instrumentation")) is not None:
        wrapping.uninstrument_all()


def calling(arguments: Any, name: Any = "f") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"id": "a", "type": "function", "function": function}]}


def served(*answers: dict[str, Any]) -> EchoLLM:
    """A server that answers a request with the first ``n`` of these messages."""

    def reply(request: dict[str, Any]) -> RawReply:
        logprobs = {"content": [{"logprob": -1.0}, {"logprob": -1.0}]}
        choices = [
            {"index": number, "finish_reason": "stop", "token_ids": [5 + number, 0]}
            | {"message": {"role": "assistant", "content": None, **answer}, "logprobs": logprobs}
            for number, answer in enumerate(answers[: request.get("n") or 1])
        ]
        body = {"id": "c-1", "model": "policy", "prompt_token_ids": [1, 2, 3], "choices": choices}
        return RawReply(200, json.dumps(body).encode())

    return EchoLLM(reply)


async def ask(llm: agl.LLM, messages: list[Any], n: int = 1) -> None:
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key="x") as client:
        await client.chat.completions.create(model=llm.model, messages=messages, n=n)


async def run(agent: Any, *answers: dict[str, Any], adapter: Any = None, tracer: Any = None) -> Any:
    with served(*answers) as llm:
        gateway, given = agl.LLMProxy(model_list=[entry("policy", llm.url)]), agl.rollout(agent)
        return settled(await collect(given, gateway, model=POLICY, adapter=adapter, tracer=tracer))


async def test_deep_arguments_in_one_of_two_answers_leave_the_other() -> None:
    async def agent(task: str, llm: agl.LLM) -> float:
        await ask(llm, [USER], n=2)
        await ask(llm, [USER, {"role": "assistant", "content": "", **calling("{}")}, USER])
        return 1.0

    collected = await run(agent, calling(DEEP), calling("{}"))
    used, later = rows_of(collected)
    assert used.call_ids[0].endswith("#1")
    assert collected.ledger.reasons() == {"unused_choice": 1}
    # Of one answer, too: it was sampled, and is trained as one that calls no tool.
    assert later.tool_problems == ["broken_tool_call"]


@pytest.mark.parametrize(
    "attributes",
    [
        {"agentops.task.output": DEEP},
        {"agentlightning.object.json": DEEP},
        {"gen_ai.tool.name": "f", "openinference.span.kind": "TOOL", "output.value": DEEP},
    ],
    ids=lambda attributes: next(reversed(attributes)),
)
async def test_deep_json_on_any_span_changes_nothing(attributes: dict[str, str]) -> None:
    async def agent(task: str, llm: agl.LLM) -> float:
        await ask(llm, [USER], n=2)
        with trace.get_tracer("agent").start_as_current_span("odd", attributes=attributes):
            pass
        return 1.0

    adapter = agl.TraceToRows(credit="per_call", air={"on_tool_success": 0.0})
    collected = await run(agent, {"content": "same"}, {"content": "same"}, adapter=adapter)
    (row,) = rows_of(collected)
    assert row.reward == 1.0


@pytest.mark.parametrize(
    ("reason", "attributes"),
    [
        ("malformed", {**CALL, "gen_ai.request.functions.0.parameters": DEEP}),
        ("malformed", {**CALL, "gen_ai.prompt.0.x" + ".a" * 20_000: 1}),
        ("malformed", {"gen_ai.operation.name": "chat", "gen_ai.input.messages": DEEP}),
        ("malformed", {"agentlightning.operation.output.choices.0.logprobs": DEEP}),
        # In the place of tokens it leaves the text.
        ("no_token_ids", {**CALL, "gen_ai.response.finish_reasons": DEEP}),
        ("no_token_ids", {**CALL, "prompt_token_ids": DEEP}),
        ("no_token_ids", {**CALL, "logprobs.content": DEEP}),
    ],
    ids=lambda given: given if isinstance(given, str) else next(reversed(given))[:50],
)
async def test_deep_json_in_a_call_excludes_that_call(reason, attributes) -> None:
    async def agent(task: str, llm: agl.LLM) -> float:
        await ask(llm, [USER])
        with trace.get_tracer("agent").start_as_current_span("odd", attributes=attributes):
            pass
        return 1.0

    collected = await run(agent, {"content": "good"})
    (row,) = rows_of(collected)
    assert row.reward == 1.0
    assert collected.ledger.reasons() == {reason: 1}


@pytest.mark.parametrize("tracer", ["OtelTracer", "AgentOpsTracer"])
@pytest.mark.parametrize(
    "tool_calls",
    [
        ["x"],
        "abc",
        5,
        [{"function": "x"}],
        calling("{}", name={"a": 1})["tool_calls"],
        calling(["a"])["tool_calls"],
        calling(DEEP)["tool_calls"],
    ],
    ids=lambda calls: str(calls)[:70],
)
async def test_odd_tool_calls_in_a_later_request_say_nothing_of_a_choice(tool_calls, tracer):
    async def agent(task: str, llm: agl.LLM) -> float:
        await ask(llm, [USER], n=2)
        odd = {"role": "assistant", "content": "good", "tool_calls": tool_calls}
        await ask(llm, [USER, odd, USER])
        return 1.0

    answers = {"content": "bad"}, {"content": "good"}
    collected = await run(agent, *answers, tracer=getattr(agl, tracer)())
    assert collected.ledger.reasons()["unknown_choice"] == 2


@pytest.mark.parametrize(
    "tool_calls", [["x"], "abc", 5, [{"function": "x", "type": "function"}]], ids=str
)
async def test_a_tracer_lets_odd_tool_calls_of_the_model_pass(tool_calls: Any) -> None:
    with served({"tool_calls": tool_calls}) as beside:

        async def agent(task: str, llm: agl.LLM) -> float:
            await ask(agl.LLM(endpoint=beside.url, model="policy"), [USER])
            return 1.0

        collected = await run(agent, tracer=agl.AgentOpsTracer())
    # Its span lacks what cannot be read of the answer, and so the ids of its tokens.
    assert collected.ledger.reasons() == {"no_token_ids": 1}


@pytest.mark.parametrize("tool_calls", [["x"], "abc", 5, [{"function": "x"}]], ids=str)
async def test_odd_tool_calls_of_the_model_are_a_failure_of_its_server(tool_calls: Any) -> None:
    async def agent(task: str, llm: agl.LLM) -> float:
        import aiohttp

        body = {"model": llm.model, "messages": [USER]}
        async with aiohttp.ClientSession() as session:
            (await session.post(f"{llm.endpoint}/chat/completions", json=body)).release()
        return 1.0

    collected = await run(agent, {"tool_calls": tool_calls})
    assert collected.ledger.reasons() == {"infrastructure": 1}
