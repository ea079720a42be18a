"""``agl gateway`` as a process."""

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agl.cli import main
from agl.semconv import ModelCallAttributes as Key
from agl_http.tokens import tokens_of
from agl_server.server import LightningStoreServer


class Process:
    """A running ``agl gateway``."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-c", "from agl.cli import main; main()", "gateway"]
        self.process = subprocess.Popen(
            [*command, "--port", "0", *arguments], stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"agl gateway: (http://\S+/v1) serves", line):
                self.url = found[1]
                return
        raise AssertionError(f"it did not start: {self.lines}")

    def end(self, number: int | None = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal if one is given, and wait; exit code and all that it wrote."""
        if number is not None:
            self.process.send_signal(number)
        rest = self.process.communicate(timeout=250)[1]
        return self.process.returncode, "".join(self.lines) + rest


@pytest.fixture
def gateway() -> Iterator:
    with contextlib.ExitStack() as stack:

        def start(*arguments: str) -> Process:
            process = Process(*arguments)
            stack.callback(process.process.wait)
            stack.callback(process.process.kill)
            return process

        yield start


async def test_it_serves_and_writes_every_record_before_it_ends(
    bench, gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGL_MODEL_API_KEY", "key-of-the-models")
    server = LightningStoreServer(bench.store, host="127.0.0.1", port=0)
    await server.start()
    process = gateway("--model", f"echo={bench.llm.url}", "--store", server.endpoint, "--open")
    rollout_id, attempt_id = bench.rollout.rollout_id, bench.rollout.attempt.attempt_id
    base = process.url.removesuffix("/v1")
    url = f"{base}/rollout/{rollout_id}/attempt/{attempt_id}/v1"
    for number in range(5):
        assert (await bench.post(bench.ask(str(number)), url))[0] == 200
    code, output = process.end()
    spans = await bench.store.query_spans(rollout_id)
    await server.stop()
    assert code == 0, output
    assert [json.loads(s.attributes[Key.INPUT_MESSAGES])[0]["content"] for s in spans] == [
        str(number) for number in range(5)
    ]
    assert {one["authorization"] for one in bench.llm.request_headers} == {
        "Bearer key-of-the-models"
    }
    assert "Traceback" not in output
    assert tokens_of(server).admin not in output


async def test_a_recording_is_replayed_and_ends_at_the_first_difference(
    bench, gateway, tmp_path
) -> None:
    folder = str(tmp_path / "recording")
    process = gateway("--model", f"echo={bench.llm.url}", "--record", folder, "--open")
    before = [await bench.post(bench.ask(text), process.url) for text in ("one", "two")]
    assert process.end(signal.SIGINT)[0] == 0
    process = gateway("--replay", folder, "--open")
    assert await bench.post(bench.ask("one"), process.url) == before[0]
    assert (await bench.post(bench.ask("three"), process.url))[0] == 409
    code, output = process.end(None)
    assert code == 1
    assert '-      "content": "two",' in output
    assert '+      "content": "three",' in output
    assert "agl: the replay has stopped" in output
    assert len(bench.llm.requests) == 2


async def test_token_budget_and_config_are_taken(bench, gateway, tmp_path) -> None:
    config = tmp_path / "gateway.yaml"
    entry = {**bench.models(bench.llm.url)[0], "price": {"input": 1.0, "output": 5.0}}
    config.write_text(json.dumps({"model_list": [entry], "callbacks": [], "num_retries": 2}))
    process = gateway(
        "--config",
        str(config),
        "--token",
        "secret",
        "--run-budget",
        "calls=9",
        "--run-budget",
        "cost=0.00005",
    )
    assert (await bench.post(bench.ask(), process.url))[0] == 401
    key = {"authorization": "Bearer secret"}
    assert [(await bench.post(bench.ask(), process.url, **key))[0] for _ in range(3)] == [
        200,
        200,
        429,
    ]
    assert bench.llm.requests == [bench.ask()] * 2
    code, output = process.end()
    assert code == 0
    assert "the run has spent its budget: cost 5.2e-05 of 5e-05" in " ".join(output.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "which models? give --model NAME=URL"),
        (["--model", "qwen"], "'qwen': expected NAME=URL"),
        (["--model", "qwen=127.0.0.1:8000"], "api_base is '127.0.0.1:8000'"),
        (["--model", "m=http://a/v1", "--run-budget", "calls"], "'calls': expected LIMIT=NUMBER"),
        (["--model", "m=http://a/v1", "--run-budget", "money=5"], "unknown limit 'money'"),
        (["--model", "m=http://a/v1", "--record", "r", "--replay", "r"], "give one of them"),
        (["--replay", "nowhere"], "no recording in 'nowhere'"),
        (["--config", "none.yaml"], "none.yaml: No such file"),
        (["--config", "list.yaml"], "list.yaml: expected options of the gateway"),
        (["--config", "wrong.yaml"], "wrong.yaml: gateway.retries: unknown key. Did you mean"),
        (["--config", "broken.yaml"], "broken.yaml, line 1: not YAML"),
        (["--model", "m=http://a/v1", "--store", "nonsense"], "nonsense"),
    ],
)
def test_a_wrong_request_ends_with_2_and_a_sentence(
    tmp_path: Path, monkeypatch, capsys, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.yaml").write_text("[1]")
    (tmp_path / "wrong.yaml").write_text("num_retries: 1\nretries: 1")
    (tmp_path / "broken.yaml").write_text("a: [")
    with pytest.raises(SystemExit) as ended:
        main(["gateway", *arguments])
    assert ended.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "broken.yaml",
        "list.yaml",
        "wrong.yaml",
    ]
