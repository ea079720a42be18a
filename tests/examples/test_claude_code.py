"""The real Claude Code, offline, mends the samples through the gateway."""

import itertools
import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from example_bench import EXAMPLES, run_script, scripts

import agl
from agl_testing.echo_llm import EchoLLM

FOLDER = EXAMPLES / "claude_code"
SAMPLES = FOLDER / "swebench_samples.jsonl"
SCRIPT = FOLDER / "claude_code_agent.py"


def patch_of(file: str, old: str, new: str) -> str:
    return f"--- a/{file}\n+++ b/{file}\n@@ -1,1 +1,1 @@\n-{old}\n+{new}\n"


def test_samples_are_those_of_the_script() -> None:
    lines = SAMPLES.read_text().splitlines()
    assert [json.loads(line) for line in lines] == scripts.make_samples.SAMPLES
    tasks = import_module("swebench_utils.dataset").load_swebench_dataset(SAMPLES, limit=2)
    assert [task["instance_id"] for task in tasks] == ["calculator-1", "words-1"]
    for task in tasks:
        given = json.dumps({name: value for name, value in task.items() if name != "private"})
        assert "unittest" not in given
        assert "unittest" in json.dumps(task["private"])


def test_patch_is_judged_by_the_hidden_tests() -> None:
    task = import_module("swebench_utils.dataset").load_swebench_dataset(SAMPLES)[2]
    evaluate = import_module("swebench_utils.evaluation").evaluate

    def judge(patch: str) -> dict[str, Any]:
        return evaluate(task["instance"], task["private"], patch)

    before = "    return year % 4 == 0"
    right = "    return year % 400 == 0 if year % 100 == 0 else year % 4 == 0"
    head = "--- a/dates.py\n+++ b/dates.py\n@@ -1,2 +1,2 @@\n def is_leap(year):\n"
    assert judge(f"{head}-{before}\n+{right}\n") == {"resolved": True}
    wrong = judge(f"{head}-{before}\n+    return False\n")
    assert wrong["failed"] == ["test_dates_1.Test.test_fails", "test_dates_1.Test.test_passes"]
    assert judge("")["reason"] == "no patch"
    assert "does not apply" in judge(patch_of("dates.py", "nothing", "else"))["reason"]
    # A test that the patch brings is replaced by the hidden one.
    name = "test_dates_1.py"
    own = f"--- /dev/null\n+++ b/{name}\n@@ -0,0 +1,1 @@\n+import unittest\n"
    assert judge(own)["resolved"] is False


def test_file_outside_of_its_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="leads out of its folder"):
        import_module("swebench_utils.workspace").write_files(tmp_path / "a", {"../b.txt": "x"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("backend", "base_url", "params"),
    [
        ("vllm", "http://x/v1", {"model": "hosted_vllm/m", "api_base": "http://x/v1"}),
        (
            "openai",
            None,
            {"model": "openai/m", "api_base": "https://api.openai.com/v1", "api_key": "k"},
        ),
        ("anthropic", None, {"model": "anthropic/m"}),
    ],
)
def test_frontend_models_are_sent_to_the_backend(backend, base_url, params, monkeypatch) -> None:
    for name in ("OPENAI_BASE_URL", "HOSTED_VLLM_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    (entry,) = scripts.claude_code_agent.model_list(backend, {"claude-high": "m"}, base_url)
    assert entry == {"model_name": "claude-high", "litellm_params": params}
    if backend != "anthropic" or find_spec("litellm"):
        agl.LLMProxy(model_list=[entry])  # it takes it


def test_claude_code_mends_two_of_the_samples(tmp_path: Path) -> None:
    pytest.importorskip("claude_agent_sdk")
    datasets = pytest.importorskip("datasets")
    done = run_script(SCRIPT, "scripted", "--output-dir", tmp_path)
    assert done.stdout.splitlines() == [
        "calculator-1  succeeded  reward 1.0  4 model calls",
        "words-1  succeeded  reward 1.0  4 model calls",
        "dates-1  succeeded  reward 0.0  4 model calls",
        "2 of 3 instances are solved",
    ]
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [result["reward"] for result in results] == [1, 1, 0]

    logs = tmp_path / "logs" / "words-1"
    assert "+    return len(text.split())" in (logs / "patch.diff").read_text()
    hooks = json.loads((logs / "hooks.json").read_text())
    used = [hook["tool_name"] for hook in hooks if hook["hook_event_name"] == "PostToolUse"]
    assert used == ["Read", "Edit", "Bash"]
    assert json.loads((logs / "output.json").read_text())["result"] == "The bug is mended."

    stream = json.loads((tmp_path / "stream_words-1.json").read_text())
    spans = [agl.Span(**span) for span in stream]
    assert agl.find_final_reward(spans) == 1
    # Nothing of the hidden tests was in a prompt.
    prompts = [str(span.attributes.get("gen_ai.input.messages")) for span in spans]
    assert not any("unittest" in prompt for prompt in prompts)
    rows = datasets.load_from_disk(str(tmp_path / "dataset-words-1"))
    assert len(rows) == 4
    goes_on = [
        after["prompt_ids"][: len(before["prompt_ids"]) + len(before["response_ids"])]
        == [*before["prompt_ids"], *before["response_ids"]]
        for before, after in itertools.pairwise(rows)
    ]
    # Claude Code sends its call of Edit back with "replace_all": false, which was not in it.
    assert goes_on == [True, False, True]
    assert {row["reward"] for row in rows} == {1.0}
    assert all(len(row["logprobs"]) == len(row["response_ids"]) > 0 for row in rows)


def test_openai_compatible_server_is_asked_for_its_own_models(tmp_path: Path) -> None:
    pytest.importorskip("claude_agent_sdk")
    with EchoLLM(lambda request: "I cannot.") as llm:
        done = run_script(
            *(SCRIPT, "openai", "--backend-model-high", "their-model", "--limit", 1),
            *("--output-dir", tmp_path),
            OPENAI_BASE_URL=llm.url,
            OPENAI_API_KEY="key-of-acme",
        )
    assert done.stdout.splitlines()[-1] == "0 of 1 instances are solved"
    assert {request["model"] for request in llm.requests} == {"their-model"}
    assert {headers["authorization"] for headers in llm.request_headers} == {"Bearer key-of-acme"}
    assert not (tmp_path / "dataset-calculator-1").exists()


def test_backend_without_a_model_says_what_to_do(tmp_path: Path) -> None:
    done = run_script(SCRIPT, "vllm", "--backend-model-high", "m", code=2)
    assert "vllm --base-url" in done.stderr
