"""Tools of the Responses API that chat completions do not know, there and back."""

import json

import pytest

from agl.semconv import ModelCallAttributes as Key
from agl_gateway.dialects.responses import Responses
from agl_gateway.errors import RefusedError

from .test_dialect_responses import events_of

openai = pytest.importorskip("openai")

GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": GRAMMAR}
SHELL = {"type": "local_shell"}
SPAWN = {"type": "function", "name": "spawn", "description": "Starts one.", "parameters": {}}
WAIT = {"type": "function", "name": "wait", "parameters": {}}
OF_HELPERS = {"name": "agents", "description": "Of helpers."}
AGENTS = {"type": "namespace", **OF_HELPERS, "tools": [SPAWN, WAIT]}
SEARCH = {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}}
ASKED = {"role": "user", "content": "hello"}


def calling(name: str, arguments: object) -> dict:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": text}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def ask(items: object, *tools: dict, **fields: object) -> dict:
    return {"model": "echo", "input": items, "tools": list(tools), **fields}


def chat(items: object, *tools: dict, **fields: object) -> dict:
    return json.loads(Responses().read(json.dumps(ask(items, *tools, **fields)).encode()).request)


def names_of(request: dict) -> list[str]:
    return [tool["function"]["name"] for tool in request["tools"]]


LINES = 'a "naïve"\nline'
LIST = {"command": ["ls", "-l"], "timeout_ms": 9}
EXEC = {"type": "exec", "env": {}, **LIST}
PATCHING, OF_AGENTS = {**AGENTS, "tools": [PATCH]}, {"namespace": "agents"}
SPAWNED = {"type": "function_call", "name": "spawn", **OF_AGENTS}
PATCHED = {"type": "custom_tool_call", "name": "apply_patch"}


@pytest.mark.parametrize(
    ("tool", "name", "arguments", "item"),
    [
        (PATCH, "apply_patch", {"input": LINES}, {**PATCHED, "input": LINES}),
        (SHELL, "local_shell", LIST, {"type": "local_shell_call", "action": EXEC}),
        (AGENTS, "agents__spawn", {"task": "look"}, {**SPAWNED, "arguments": '{"task": "look"}'}),
        (PATCHING, "agents__apply_patch", {"input": "x"}, {**PATCHED, **OF_AGENTS, "input": "x"}),
    ],
    ids=["free text", "shell", "namespace", "free text in a namespace"],
)
async def test_calls_and_results_continue_the_prompt(bench, client, tool, name, arguments, item):
    bench.llm.reply = lambda request: calling(name, arguments)
    whole = await client.responses.create(**ask([ASKED], tool))
    events = await events_of(client, **ask([ASKED], tool))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    (called,) = (each.model_dump(exclude_none=True) for each in whole.output)
    (streamed,) = (each.model_dump(exclude_none=True) for each in events[-1].response.output)
    assert called.pop("id") != streamed.pop("id")
    assert called == streamed == {**item, "call_id": "call_1", "status": "completed"}
    done = next(event.item for event in events if event.type == "response.output_item.done")
    assert done.type == item["type"]
    if item["type"] == "custom_tool_call":
        deltas = [event.delta for event in events if event.type.endswith("input.delta")]
        assert "".join(deltas) == item["input"]

    bench.llm.reply = lambda request: "done"
    output = {"type": f"{item['type']}_output", "call_id": "call_1", "output": "six"}
    await client.responses.create(**ask([ASKED, called, output], tool))
    sent = bench.llm.requests[-1]["messages"]
    assert sent[1:] == [
        calling(name, arguments),
        {"role": "tool", "tool_call_id": "call_1", "content": "six"},
    ]
    first, _, last = (span.attributes for span in await bench.spans())
    before = first[Key.PROMPT_TOKEN_IDS] + first[Key.RESPONSE_TOKEN_IDS]
    assert last[Key.PROMPT_TOKEN_IDS][: len(before)] == before


@pytest.mark.parametrize(
    ("tool", "name", "arguments", "item"),
    [
        (PATCH, "apply_patch", "no JSON", {"type": "custom_tool_call", "input": "no JSON"}),
        (PATCH, "apply_patch", '{"input": 1}', {"type": "custom_tool_call"}),
        (SHELL, "local_shell", '{"command": "ls"}', {"type": "function_call"}),
        (SHELL, "local_shell", '{"command": ["ls"], "x": 1}', {"type": "function_call"}),
        (SEARCH, "tool_search", '["x"]', {"type": "tool_search_call", "arguments": '["x"]'}),
        (SEARCH, "tool_search", '{"q": 1}', {"type": "tool_search_call", "arguments": {"q": 1}}),
    ],
)
async def test_what_does_not_fit_a_tool_reaches_the_agent(bench, tool, name, arguments, item):
    bench.llm.reply = lambda request: calling(name, arguments)
    _, body = await bench.post(ask("hello", tool), path="responses")
    (called,) = json.loads(body)["output"]
    assert item.items() <= called.items()
    given = called.get("input", called.get("arguments"))
    assert given == arguments or json.dumps(given) == arguments


def test_the_model_is_told_of_grammars_and_of_namespaces():
    patch, spawn, wait = (tool["function"] for tool in chat("hello", PATCH, AGENTS)["tools"])
    assert patch["description"].startswith("Edits.\n\nThe input has to match this lark grammar:")
    assert patch["description"].endswith("start: /.+/")
    assert list(patch["parameters"]["properties"]) == ["input"]
    assert (spawn["name"], wait["name"]) == ("agents__spawn", "agents__wait")
    assert spawn["description"] == "Of helpers.\n\nStarts one."
    assert "description" not in wait


def test_tools_that_a_search_has_found_are_offered_from_then_on():
    search = {"type": "tool_search_call", "call_id": "c", "arguments": {"q": "é"}}
    found = {**AGENTS, "tools": [{**SPAWN, "defer_loading": True}]}
    output = {"type": "tool_search_output", "call_id": "c", "execution": "client"}
    request = chat([ASKED, search, {**output, "tools": [found]}], SEARCH)
    assert names_of(request) == ["tool_search", "agents__spawn"]
    called, result = request["messages"][1:]
    assert called["tool_calls"][0]["function"]["arguments"] == '{"q": "é"}'
    assert result["content"] == "agents__spawn can be called now."
    nothing = chat([ASKED, search, {**output, "tools": []}], SEARCH)
    assert nothing["messages"][-1]["content"] == "Nothing found."


def test_tools_may_stand_among_the_items():
    more = {"type": "additional_tools", "role": "developer", "tools": [AGENTS, PATCH]}
    request = chat([more, ASKED])
    assert names_of(request) == ["agents__spawn", "agents__wait", "apply_patch"]
    assert [message["role"] for message in request["messages"]] == ["user"]


def test_the_result_of_a_shell_may_name_its_item():
    action = {"type": "exec", "command": ["ls"], "working_directory": None, "env": {}}
    call = {"type": "local_shell_call", "id": "lsh_1", "call_id": "c", "action": action}
    output = {"type": "local_shell_call_output", "id": "lsh_1", "output": "{}"}
    called, result = chat([ASKED, call, output], SHELL)["messages"][1:]
    assert json.loads(called["tool_calls"][0]["function"]["arguments"]) == {"command": ["ls"]}
    assert result["tool_call_id"] == called["tool_calls"][0]["id"] == "c"


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "custom", "name": "apply_patch"}, "apply_patch"),
        ({"type": "local_shell"}, "local_shell"),
        ({"type": "function", "namespace": "agents", "name": "spawn"}, "agents__spawn"),
    ],
)
def test_each_of_them_can_be_chosen(choice, name):
    request = chat("hello", PATCH, SHELL, AGENTS, tool_choice=choice)
    assert request["tool_choice"] == {"type": "function", "function": {"name": name}}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [choice]}
    [tool] = chat("hello", PATCH, SHELL, AGENTS, tool_choice=allowed)["tools"]
    assert tool["function"]["name"] == name


SHELL_CALL = {"type": "local_shell_call", "call_id": "c"}
TWICE = {"type": "function", "name": "agents__spawn"}


@pytest.mark.parametrize(
    ("items", "tools", "named"),
    [
        ("hello", [{**SEARCH, "execution": "server"}], "tools.0.execution: got 'server'"),
        ("hello", [{**PATCH, "strict": True}], "tools.0.strict"),
        ("hello", [{**PATCH, "format": {"type": "xml"}}], "tools.0.format.type: got 'xml'"),
        ("hello", [{**AGENTS, "tools": [SHELL]}], "tools.0.tools.0.type: got 'local_shell'"),
        ("hello", [{**SPAWN, "defer_loading": True}], "tools.0.defer_loading"),
        ("hello", [AGENTS, TWICE], "tools.1.name: the model would see two tools 'agents__spawn'"),
        ([{**SHELL_CALL, "action": {"type": "exec"}}], [], "input.0.action.command: is missing"),
    ],
)
def test_what_somebody_else_would_have_to_run_is_refused(items, tools, named):
    with pytest.raises(RefusedError) as refused:
        chat(items, *tools)
    assert named in refused.value.message
    assert refused.value.status == 400


async def test_pieces_of_free_text_come_as_one_whatever_their_size(bench):
    bench.llm.reply = lambda request: calling("apply_patch", {"input": "one two three"})
    _, body = await bench.post(ask("hello", PATCH, stream=True), path="responses")
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: ")]
    kinds = [event["type"].removeprefix("response.") for event in events]
    of_text = [f"custom_tool_call_input.{end}" for end in ("delta", "done")]
    assert kinds[2:7] == ["output_item.added", *of_text, "output_item.done", "completed"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
