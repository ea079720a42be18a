"""``agl agentops`` as a process, and programs that send to it as AgentOps' SDK does."""

import asyncio
import json
import re
import signal
import subprocess
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.trace import Status, StatusCode
from tests.interpreter import AGL, started
from tests.stores import opened

from agl.cli import cli


class Collecting:
    """A running ``agl agentops``, and its variables."""

    def __init__(self, path: Path) -> None:
        command, said = [*AGL, "agentops", "--port", "0", "--path", path], subprocess.PIPE
        self.process = started(*command, stderr=said, text=True)
        lines = [self.process.stdout.readline() for _ in range(3)]
        self.variables = dict(re.findall(r"export (\w+)=(\S+)", "".join(lines)))

    def post(self, path: str, **body: str) -> dict:
        url, kind = self.variables["AGENTOPS_API_ENDPOINT"] + path, "application/json"
        asked = Request(url, json.dumps(body).encode(), {"Content-Type": kind})
        with urlopen(asked) as answer:
            return json.loads(answer.read())

    def token(self) -> str:
        return self.post("/v3/auth/token", api_key=self.variables["AGENTOPS_API_KEY"])["token"]

    def exporter(self, token: str | None = None) -> SimpleSpanProcessor:
        endpoint = self.variables["AGENTOPS_EXPORTER_ENDPOINT"]
        headers = {"Authorization": f"Bearer {token or self.token()}"}
        # The timeout is for where nobody is there any more.
        return SimpleSpanProcessor(OTLPSpanExporter(endpoint, headers=headers, timeout=2))

    def tracer(self, token: str | None = None) -> TracerProvider:
        resource = Resource({"service.name": "agentops", "agentops.project.id": "temporary"})
        provider = TracerProvider(resource=resource)
        provider.add_span_processor(self.exporter(token))
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
            said = {"prompt": ("user", question), "completion": ("assistant", "yes")}
            for name, (role, content) in said.items():
                call.set_attribute(f"gen_ai.{name}.0.role", role)
                call.set_attribute(f"gen_ai.{name}.0.content", content)
            call.set_attribute("gen_ai.request.model", "echo")
            call.set_attribute("gen_ai.response.id", f"answer to {question}")
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
    async with opened(tmp_path / "store.db") as store:
        one, other = await store.query_rollouts()
        spans = await store.query_spans(one.rollout_id)
    assert (one.input, one.status) == ("is it?", "succeeded")
    assert (other.input, other.status) == ("was it?", "failed")
    assert [span.name for span in spans] == ["openai.chat.completion", "run.session"]
    assert other.attempt.error.message == "it broke"


async def test_what_was_collected_is_exported_and_gets_rewards(collecting, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    collector = collecting()
    provider = collector.tracer()
    work(provider, "is it?")
    provider.shutdown()
    collector.end()
    async with opened(tmp_path / "store.db") as store:
        (rollout,) = await store.query_rollouts()
    trace = rollout.metadata["imported"]["id"]
    labels = {"rewards": [{"rollout_id": trace, "value": 0.5}]}
    (tmp_path / "labels.json").write_text(json.dumps(labels))

    def export() -> None:
        cli.main(["import", "labels.json", "--path", "store.db"], standalone_mode=False)
        arguments = ["export", "--as", "messages", "--path", "store.db", "-o", "calls.jsonl"]
        cli.main(arguments, standalone_mode=False)

    await asyncio.to_thread(export)
    (line,) = (tmp_path / "calls.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert record["reward"] == 0.5
    assert [message["content"] for message in record["messages"]] == ["is it?", "yes"]


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_trace_goes_on_after_a_kill_and_fails_at_an_end(collecting, tmp_path, is_killed):
    first = collecting()
    provider = first.tracer()
    tracer = provider.get_tracer("agentops")
    with tracer.start_as_current_span("run.session"):
        with tracer.start_as_current_span("step"):
            pass
        first.end(signal.SIGKILL if is_killed else signal.SIGTERM)
        if is_killed:
            second = collecting()
            provider.add_span_processor(second.exporter())
    second.end() if is_killed else provider.shutdown()
    async with opened(tmp_path / "store.db") as store:
        (rollout,) = await store.query_rollouts()
        spans = await store.query_spans(rollout.rollout_id)
    assert [span.name for span in spans] == (["step", "run.session"] if is_killed else ["step"])
    assert rollout.status == ("succeeded" if is_killed else "failed")
    error = rollout.attempt.error
    assert is_killed or "stopped before the trace ended" in error.message


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
