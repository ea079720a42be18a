"""``agl agentops`` as a process, and programs that send to it as AgentOps' SDK does."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.trace import Status, StatusCode

import agl
from agl.cli import cli

COMMAND = [sys.executable, "-c", "from agl.cli import main; main()", "agentops", "--port", "0"]


class Collecting:
    """A running ``agl agentops``, and its variables."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "--path", str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline() for _ in range(3)]
        self.variables = dict(re.findall(r"export (\w+)=(\S+)", "".join(lines)))

    def post(self, path: str, **body: str) -> dict:
        request = Request(
            self.variables["AGENTOPS_API_ENDPOINT"] + path,
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urlopen(request) as answer:
            return json.loads(answer.read())

    def token(self) -> str:
        return self.post("/v3/auth/token", api_key=self.variables["AGENTOPS_API_KEY"])["token"]

    def tracer(self, token: str | None = None) -> TracerProvider:
        exporter = OTLPSpanExporter(
            endpoint=self.variables["AGENTOPS_EXPORTER_ENDPOINT"],
            headers={"Authorization": f"Bearer {token or self.token()}"},
            timeout=2,  # where nobody is there any more
        )
        resource = Resource({"service.name": "agentops", "agentops.project.id": "temporary"})
        provider = TracerProvider(resource=resource)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        return provider

    def end(self, number: int = signal.SIGTERM) -> str:
        self.process.send_signal(number)
        return self.process.communicate()[1]


@pytest.fixture
def collecting(tmp_path):
    started: list[Collecting] = []

    def start() -> Collecting:
        started.append(Collecting(tmp_path / "store.db"))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()


def work(provider: TracerProvider, question: str, fails: bool = False) -> None:
    """A trace as AgentOps' SDK has them: a session, and in it a call in its attributes."""
    tracer = provider.get_tracer("agentops")
    with tracer.start_as_current_span("run.session") as session:
        with tracer.start_as_current_span("openai.chat.completion") as call:
            call.set_attributes(
                {
                    "gen_ai.prompt.0.role": "user",
                    "gen_ai.prompt.0.content": question,
                    "gen_ai.completion.0.role": "assistant",
                    "gen_ai.completion.0.content": "yes",
                    "gen_ai.request.model": "echo",
                    "gen_ai.response.id": f"answer to {question}",
                }
            )
        if fails:
            session.set_status(Status(StatusCode.ERROR, "it broke"))


async def test_each_trace_is_a_rollout_with_its_task_and_its_end(collecting, tmp_path):
    collector = collecting()
    provider = collector.tracer()
    work(provider, "is it?")
    work(provider, "was it?", fails=True)
    provider.shutdown()
    output = collector.end()
    assert collector.process.returncode == 0, output
    assert collector.variables["AGENTOPS_API_KEY"] not in output
    store = agl.SqliteLightningStore(tmp_path / "store.db")
    rollouts = await store.query_rollouts()
    spans = await store.query_spans(rollouts[0].rollout_id)
    failed = await store.get_latest_attempt(rollouts[1].rollout_id)
    await store.close()
    assert [(one.input, one.status) for one in rollouts] == [
        ("is it?", "succeeded"),
        ("was it?", "failed"),
    ]
    assert [span.name for span in spans] == ["openai.chat.completion", "run.session"]
    assert failed.error.message == "it broke"


async def test_what_was_collected_is_exported_and_gets_rewards(collecting, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    collector = collecting()
    provider = collector.tracer()
    work(provider, "is it?")
    provider.shutdown()
    collector.end()
    store = agl.SqliteLightningStore(tmp_path / "store.db")
    (rollout,) = await store.query_rollouts()
    await store.close()
    trace = rollout.metadata["imported"]["id"]
    (tmp_path / "labels.json").write_text(
        json.dumps({"rewards": [{"rollout_id": trace, "value": 0.5}]})
    )

    def export() -> None:
        cli.main(["import", "labels.json", "--path", "store.db"], standalone_mode=False)
        arguments = ["export", "--as", "messages", "--path", "store.db", "-o", "calls.jsonl"]
        cli.main(arguments, standalone_mode=False)

    await asyncio.to_thread(export)
    (line,) = (tmp_path / "calls.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert record["reward"] == 0.5
    assert [message["content"] for message in record["messages"]] == ["is it?", "yes"]


async def test_a_trace_without_an_end_fails_with_the_collector_and_keeps_its_spans(
    collecting, tmp_path
):
    collector = collecting()
    provider = collector.tracer()
    tracer = provider.get_tracer("agentops")
    with tracer.start_as_current_span("run.session"):
        with tracer.start_as_current_span("step"):
            pass
        collector.end()
    provider.shutdown()
    store = agl.SqliteLightningStore(tmp_path / "store.db")
    (rollout,) = await store.query_rollouts()
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    spans = await store.query_spans(rollout.rollout_id)
    await store.close()
    assert [span.name for span in spans] == ["step"]
    assert rollout.status == "failed"
    assert "stopped before the trace ended" in attempt.error.message


async def test_after_a_kill_the_trace_goes_on(collecting, tmp_path):
    first = collecting()
    provider = first.tracer()
    tracer = provider.get_tracer("agentops")
    with tracer.start_as_current_span("run.session"):
        with tracer.start_as_current_span("step"):
            pass
        first.end(signal.SIGKILL)
        second = collecting()
        provider.add_span_processor(
            SimpleSpanProcessor(
                OTLPSpanExporter(
                    endpoint=second.variables["AGENTOPS_EXPORTER_ENDPOINT"],
                    headers={"Authorization": f"Bearer {second.token()}"},
                )
            )
        )
    second.end()
    store = agl.SqliteLightningStore(tmp_path / "store.db")
    (rollout,) = await store.query_rollouts()
    spans = await store.query_spans(rollout.rollout_id)
    await store.close()
    assert rollout.status == "succeeded"
    assert [span.name for span in spans] == ["step", "run.session"]


def test_a_wrong_key_and_a_wrong_token_are_refused(collecting, caplog):
    collector = collecting()
    with pytest.raises(HTTPError) as error:
        collector.post("/v3/auth/token", api_key="wrong")
    assert error.value.code == 401
    error.value.close()
    provider = collector.tracer("wrong")
    exporter = provider._active_span_processor._span_processors[0].span_exporter
    span = provider.get_tracer("agentops").start_span("run.session")
    assert exporter.export([span]) is SpanExportResult.FAILURE
    provider.shutdown()
