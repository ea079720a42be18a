"""Codex, whole: npm's command-line program, its shell, patches and subagents, at the gateway."""

import json
import shutil
from typing import Any

import pytest
from gateway_run import Answer, calls_in_turn, run_at_gateway, tool_call
from processes import OLD_CODEX, codex

pytestmark = [
    *(pytest.mark.timeout(400), pytest.mark.usefixtures("once")),
    pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm"),
]
PATCHES = "gpt-5.5"
"""One of the models that Codex knows by name, and offers its tool of free text."""
ADD_FILE = '*** Begin Patch\n*** Add File: "naïve".txt\n+six\n*** End Patch'


async def run(store, answer, folder, *settings, model="echo", **options):
    def ask(url: str, _: dict[str, str]) -> Any:
        return codex(url, "Write six into a file.", folder, *settings, model=model, **options)

    return await run_at_gateway(store, answer, ask, model)


def with_thoughts(answer: Answer) -> Answer:
    def answer_with_thoughts(request: dict[str, Any]) -> Any:
        turn = answer(request)
        message = {"role": "assistant", "content": turn} if isinstance(turn, str) else turn
        return {**message, "reasoning_content": f"thought {len(request['messages'])}"}

    return answer_with_thoughts


async def test_a_task_with_its_shell_is_one_row(memory_store, tmp_path):
    turns = calls_in_turn(
        ("exec_command", {"cmd": "echo six > number.txt && cat number.txt"}),
        ("exec_command", {"cmd": "cat missing.txt"}),
        ("no_such_tool", {}),
        "done",
    )
    ran = await run(memory_store, with_thoughts(turns), tmp_path)
    assert ran.text == "done"
    assert (tmp_path / "number.txt").read_text() == "six\n"
    assert [call.error for call in ran.calls] == [None] * 4
    results = ran.results()
    assert results[0].endswith("six\n")
    assert "No such file" in results[1]
    assert "unsupported call" in results[2]
    # What it thought comes back, and so each prompt begins with the one before and its answer.
    thoughts = [m["reasoning"] for m in ran.calls[-1].messages if m.get("reasoning")]
    assert len(thoughts) == 3
    (row,) = ran.rows.rows
    assert row.call_ids == [call.call_id for call in ran.calls]
    assert row.reward == 1.0
    assert ran.rows.ledger.exclusions == []


async def test_a_patch_in_free_text_is_one_row(memory_store, tmp_path):
    patch = json.dumps({"input": ADD_FILE}, ensure_ascii=False)  # as most models write it
    wrong = ("apply_patch", {"input": "no patch"})
    turns = calls_in_turn(wrong, ("apply_patch", patch), "done")
    ran = await run(memory_store, turns, tmp_path, model=PATCHES)
    assert ran.text == "done"
    assert (tmp_path / '"naïve".txt').read_text() == "six\n"
    refused, done = ran.results()
    assert "invalid patch" in refused
    assert "Success" in done
    offered = {tool["function"]["name"]: tool["function"] for tool in ran.calls[0].tools}
    assert "begin_patch hunk+ end_patch" in offered["apply_patch"]["description"]
    (row,) = ran.rows.rows
    assert len(row.call_ids) == 3


async def test_a_patch_that_is_no_json_reaches_its_tool_as_it_is(memory_store, tmp_path):
    turns = calls_in_turn(("apply_patch", ADD_FILE.replace('"naïve"', "plain")), "done")
    ran = await run(memory_store, turns, tmp_path, model=PATCHES)
    assert (tmp_path / "plain.txt").read_text() == "six\n"
    # The next prompt has it as JSON, as templates of chats need it: other tokens, another row.
    assert [len(row.call_ids) for row in ran.rows.rows] == [1, 1]


async def test_a_subagent_that_it_has_to_search_for_first(memory_store, tmp_path):
    main = calls_in_turn(
        ("tool_search", {"query": "spawn agent"}),
        ("multi_agent_v1__spawn_agent", {"message": "Look around."}),
        "started",
        "started",  # Codex asks once more if the subagent has ended by then.
    )

    def answer(request: dict[str, Any]) -> Any:
        is_main = "Write six into a file" in json.dumps(request["messages"])
        return main(request) if is_main else "nothing there"

    ran = await run(memory_store, answer, tmp_path, model=PATCHES)
    mine = [call for call in ran.calls if "Write six" in str(call.messages)]
    assert {call.error for call in mine} == {None}
    offered = [{tool["function"]["name"] for tool in call.tools} for call in mine]
    assert "multi_agent_v1__spawn_agent" not in offered[0]
    assert "multi_agent_v1__spawn_agent" in offered[1]
    results = [m["content"] for m in mine[-1].messages if m["role"] == "tool"]
    assert "multi_agent_v1__spawn_agent" in results[0]
    assert "agent_id" in results[1]
    # Codex ends with its own last answer, though its subagent may then be in the middle of a call.
    answered = [call for call in ran.calls if call.error is None]
    assert sum(len(row.call_ids) for row in ran.rows.rows) == len(answered)


async def test_code_that_calls_its_tools(memory_store, tmp_path):
    """Its newest models get a tool that runs JavaScript, in a namespace among the items."""
    code = "text(await tools.exec_command({cmd: 'echo six > number.txt; echo written'}))"
    turns = calls_in_turn(("functions__exec", {"input": code}), "done")
    ran = await run(memory_store, turns, tmp_path, model="gpt-5.6-sol")
    assert ran.text == "done"
    assert (tmp_path / "number.txt").read_text() == "six\n"
    assert "written" in str(ran.results()[0])
    (row,) = ran.rows.rows
    assert len(row.call_ids) == 2


async def test_the_local_shell_of_an_older_release(memory_store, tmp_path):
    turns = calls_in_turn(
        ("local_shell", {"command": ["sh", "-c", "echo six > number.txt"]}),
        ("local_shell", {"command": "echo six"}),
        "done",
    )
    ran = await run(memory_store, turns, tmp_path, model="codex-mini-latest", version=OLD_CODEX)
    assert ran.text == "done"
    assert (tmp_path / "number.txt").read_text() == "six\n"
    assert '"exit_code":0' in ran.results()[0]
    assert "unsupported call" in ran.results()[1]
    (row,) = ran.rows.rows
    assert len(row.call_ids) == 3


async def test_a_conversation_that_it_has_shortened_is_several_rows(memory_store, tmp_path):
    def answer(request: dict[str, Any]) -> Any:
        said = json.dumps(request["messages"])
        if "summary" in said.lower() and not request.get("tools"):
            return "I have written six."
        if "I have written six." in said:
            return "done"
        return tool_call("call_0", "exec_command", {"cmd": "seq 2000"})

    ran = await run(memory_store, answer, tmp_path, "model_auto_compact_token_limit=2500")
    assert ran.text == "done"
    assert {call.error for call in ran.calls} == {None}
    assert "CONTEXT CHECKPOINT" in str(ran.calls[1].messages[-1])
    assert [len(row.call_ids) for row in ran.rows.rows] == [1, 1, 1]


async def test_its_search_of_openais_is_left_out(memory_store, tmp_path):
    ran = await run(memory_store, lambda request: "done", tmp_path, 'web_search="cached"')
    assert ran.text == "done"
