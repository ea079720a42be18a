"""0.1's server, client and runner, between two ends of ours."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from tests.interpreter import python

import agentlightning as agl
from agentlightning import (
    AgentLightningClient,
    AgentLightningServer,
    DevTaskLoader,
    LegacyAgentRunner,
    RolloutLegacy,
    Task,
    Trainer,
)
from agentlightning._v01.command import main
from agentlightning.client import HEADER
from agl.errors import ConfigError, UnknownRecordError
from agl_bench.server import own_command, served
from agl_http.tokens import without_token

pytestmark = pytest.mark.plugins

PROMPT: agl.NamedResources = {"prompt": agl.PromptTemplate(template="{x}", engine="f-string")}
SEEDS = Path(os.environ.get("AGL_SEEDS", Path(__file__).parents[3] / "shared/seeds"))
TOKEN = "a-token-that-is-long-enough"


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGL_SERVER_TOKEN", raising=False)


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[AgentLightningServer]:
    server = AgentLightningServer(port=0, **options)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def server() -> AsyncIterator[AgentLightningServer]:
    async with serving() as server:
        yield server
    await server.store.close()


def client_of(server: AgentLightningServer) -> AgentLightningClient:
    return AgentLightningClient(server.endpoint, poll_interval=0.05)


async def test_task_goes_to_a_client_and_its_report_comes_back(server) -> None:
    resources_id = await server.update_resources(PROMPT)
    rollout_id = await server.queue_task({"x": 1}, mode="train", metadata={"k": 1})
    client = client_of(server)
    task = await client.poll_next_task_async()
    assert task.create_time is not None
    assert task.last_claim_time is not None
    said = task.model_dump(exclude={"create_time", "last_claim_time"})
    about = {"input": {"x": 1}, "mode": "train", "metadata": {"k": 1}}
    assert said == {"rollout_id": rollout_id, "resources_id": None, "num_claims": 1, **about}
    update = await client.get_latest_resources_async()
    assert (update.resources_id, update.resources) == (resources_id, PROMPT)
    triplet = agl.Triplet(prompt={"token_ids": [1]}, response={"token_ids": [2]}, reward=0.5)
    about = {"logs": ["a line"], "metadata": {"m": 1}, "final_reward": 0.5, "triplets": [triplet]}
    trace = [{"name": "what an agent of 0.1 calls a trace"}]
    report = RolloutLegacy(rollout_id=rollout_id, trace=trace, **about)
    answer = await client.post_rollout_async(report)
    assert answer["status"] == "ok"
    assert await server.poll_completed_rollout(rollout_id, timeout=5) == report
    assert await server.get_completed_rollout(rollout_id) is None, "it was taken"
    assert client.task_count == 1


async def test_spans_and_reward_of_a_report_are_in_the_store(server) -> None:
    rollout_id = await server.queue_task("task")
    client = client_of(server)
    await client.poll_next_task_async()
    span = {
        "name": "openai.chat.completion",
        "context": {"trace_id": "0x" + "a" * 32, "span_id": "0x" + "b" * 16, "trace_state": "[]"},
        "kind": "SpanKind.CLIENT",
        "parent_id": None,
        "start_time": "2026-01-01T00:00:00.500000Z",
        "end_time": "2026-01-01T00:00:01.000000Z",
        "status": {"status_code": "OK"},
        "attributes": {"gen_ai.response.id": "r", "prompt_token_ids": [1, 2]},
        "events": [{"name": "e", "timestamp": "2026-01-01T00:00:00.700000Z", "attributes": {}}],
        "links": [],
        "resource": {"attributes": {"service.name": "s"}, "schema_url": ""},
    }
    await client.post_rollout_async(
        RolloutLegacy(rollout_id=rollout_id, final_reward=0.25, trace=[span])
    )
    rollout = await server.store.get_rollout_by_id(rollout_id)
    assert rollout.status == "succeeded"
    spans = await server.store.query_spans(rollout_id)
    assert agl.find_final_reward(spans) == 0.25
    (call,) = [span for span in spans if span.name == "openai.chat.completion"]
    assert (call.trace_id, call.attributes["prompt_token_ids"]) == ("a" * 32, [1, 2])
    assert call.end_time is not None
    assert call.start_time is not None
    assert call.end_time - call.start_time == 0.5
    assert [event.name for event in call.events] == ["e"]


async def test_report_of_a_runner_of_today_reads_as_one_of_0_1(server, run_all) -> None:
    rollout_id = await server.queue_task("task", mode="train")
    await run_all(lambda task: 0.75, server.store, num_rollouts=1)
    (report,) = await server.retrieve_completed_rollouts()
    copy = report.model_copy(update={"rollout_id": await server.queue_task("again")})
    client = client_of(server)
    await client.poll_next_task_async()
    await client.post_rollout_async(copy)
    spans = await server.store.query_spans(copy.rollout_id)
    assert len(agl.find_reward_spans(spans)) == 1, "the one of the trace"
    assert len(await server.retrieve_completed_rollouts()) == 1
    assert (report.rollout_id, report.final_reward, report.triplets) == (rollout_id, 0.75, None)
    assert report.trace is not None
    assert [span["name"] for span in report.trace] == ["agentlightning.annotation"]
    assert await server.retrieve_completed_rollouts() == []


async def test_second_report_and_one_of_nothing_are_refused(server: AgentLightningServer) -> None:
    rollout_id = await server.queue_task("task")
    async with httpx.AsyncClient(base_url=server.endpoint, headers=HEADER) as http:
        for reward, status in ((0.5, 200), (0.75, 409)):
            body = {"rollout_id": rollout_id, "final_reward": reward}
            assert (await http.post("/rollout", json=body)).status_code == status
        unknown = await http.post("/rollout", json={"rollout_id": "ro-none"})
        assert (unknown.status_code, "ro-none" in unknown.text) == (404, True)
        assert (await http.post("/rollout", json={})).status_code == 422
    report = await server.get_completed_rollout(rollout_id)
    assert report.final_reward == 0.5


async def test_missing_resources_are_none_for_the_client(server: AgentLightningServer) -> None:
    client = client_of(server)
    assert await client.get_latest_resources_async() is None
    assert await client.get_resources_by_id_async("rs-none") is None
    with pytest.raises(UnknownRecordError, match="rs-none"):
        await server.queue_task("task", resources_id="rs-none")


async def test_poll_of_a_rollout_ends_at_its_timeout(server: AgentLightningServer) -> None:
    rollout_id = await server.queue_task("task")
    assert await server.poll_completed_rollout(rollout_id, timeout=0.05) is None
    assert await server.poll_completed_rollout("ro-none", timeout=0.05) is None


async def test_page_in_a_browser_claims_no_task(server: AgentLightningServer) -> None:
    await server.queue_task("task")
    async with httpx.AsyncClient(base_url=server.endpoint) as http:
        answer = await http.get("/task")
        assert (answer.status_code, "X-AgentLightning-Client" in answer.text) == (403, True)
        elsewhere = await http.get("/task", headers=HEADER | {"Host": "evil.example"})
        assert elsewhere.status_code == 421
    assert await client_of(server).poll_next_task_async() is not None


async def test_beyond_loopback_a_token_is_needed_and_stands_in_the_address() -> None:
    with pytest.raises(ConfigError, match="AGL_SERVER_TOKEN"):
        AgentLightningServer(host="0.0.0.0")
    async with serving(host="0.0.0.0", token=TOKEN) as server:
        await server.queue_task("task")
        without = AgentLightningClient(f"http://127.0.0.1:{server.port}")
        with pytest.raises(ConfigError, match="401"):
            await without.poll_next_task_async()
        assert f"agl:{TOKEN}@" in server.endpoint
        assert await client_of(server).poll_next_task_async() is not None


async def test_client_reads_the_token_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGL_SERVER_TOKEN", TOKEN)
    async with serving() as server:
        await server.queue_task("task")
        client = AgentLightningClient(f"http://127.0.0.1:{server.port}")
        assert await client.poll_next_task_async() is not None


async def test_client_refuses_what_is_no_server_of_0_1() -> None:
    store = agl.LightningStoreServer(agl.InMemoryLightningStore(), port=0)
    await store.start()
    with pytest.raises(ConfigError, match="LightningStoreClient"):
        await AgentLightningClient(store.endpoint).poll_next_task_async()
    await store.stop()


async def test_polling_goes_on_where_nobody_listens_yet() -> None:
    server = AgentLightningServer(port=0)
    await server.start()
    await server.stop()
    polling = asyncio.create_task(client_of(server).poll_next_task_async())
    await server.queue_task("task")
    await server.start()
    assert (await asyncio.wait_for(polling, 5)).input == "task"
    await server.stop()


def test_loader_gives_its_tasks_in_turn_for_ever() -> None:
    loader = DevTaskLoader([{"q": 1}, {"q": 2}], PROMPT)
    tasks = [loader.poll_next_task() for _ in range(3)]
    assert [task.rollout_id for task in tasks] == [f"local_task_00{n}" for n in (1, 2, 1)]
    update = loader.get_latest_resources()
    assert (update.resources_id, update.resources) == ("local", PROMPT)
    with pytest.raises(ValueError, match="local"):
        loader.get_resources_by_id("other")


def test_loader_takes_whole_tasks_and_no_mixture() -> None:
    task = Task(rollout_id="mine", input=1)
    assert DevTaskLoader([task], {}).poll_next_task() == task
    with pytest.raises(ValueError, match="no tasks"):
        DevTaskLoader([], {})
    with pytest.raises(ValueError, match="one kind"):
        DevTaskLoader([task, 1], {})


class Agent(agl.LitAgent[Any]):
    """As agents of 0.1 were written."""

    def training_rollout(self, task: Any, rollout_id: str, resources: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.answer(task, rollout_id, resources)

    def validation_rollout(self, task: Any, rollout_id: str, resources: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return 1.0

    def answer(self, task: Any, rollout_id: str, resources: Any) -> Any:
        assert resources == PROMPT
        triplet = agl.Triplet(prompt=rollout_id, response="r", reward=0.25)
        answers = {
            "reward": 0.5,
            "none": None,
            "triplets": [triplet],
            "dicts": [{"name": "x"}],
            "report": RolloutLegacy(rollout_id=rollout_id, final_reward=0.125, logs=["l"]),
        }
        return answers[task]


def report_of(kind: str, mode: Any = "train") -> RolloutLegacy:
    loader = DevTaskLoader([Task(rollout_id="local", input=kind, mode=mode)], PROMPT)
    runner = LegacyAgentRunner(
        Agent(), loader, agl.OtelTracer(), agl.TracerTraceToTriplet(), max_tasks=1
    )
    assert runner.iter() == 1
    (report,) = loader.rollouts
    assert report.rollout_id == "local"
    return report


def test_agent_of_0_1_may_return_all_that_it_could() -> None:
    assert report_of("reward").final_reward == 0.5
    assert report_of("none").final_reward is None
    triplets = report_of("triplets")
    assert triplets.final_reward == 0.25
    assert triplets.triplets[0].prompt == "local"
    assert report_of("dicts").trace == [{"name": "x"}]
    report = report_of("report")
    assert (report.final_reward, report.logs) == (0.125, ["l"])
    assert report_of("reward", mode=None).final_reward == 1.0


def test_agent_that_raises_is_reported_with_its_task_and_its_error() -> None:
    report = report_of("no such answer")
    assert report.final_reward is None
    assert report.task.input == "no such answer"
    assert report.metadata["error"] == "KeyError: 'no such answer'"


@pytest.fixture
def there() -> Iterator[Any]:
    """Runs what it is given on a loop in a thread: the server's user, beside the trainer."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result(20)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_trainer_runs_an_agent_against_a_server(there) -> None:
    server = AgentLightningServer(port=0)
    there(server.start())
    try:
        there(server.update_resources(PROMPT))
        ids = [there(server.queue_task("reward", mode="train")) for _ in range(3)]
        ids.append(there(server.queue_task("any", mode="val")))
        client = client_of(server)
        Trainer(n_workers=2, max_tasks=2, tracer=agl.OtelTracer).fit(Agent(), client)
        reports = [there(server.poll_completed_rollout(each, timeout=5)) for each in ids]
        assert [report.final_reward for report in reports] == [0.5, 0.5, 0.5, 1.0]
    finally:
        there(server.stop())


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[tuple[str, Any]]:
    """Address of a store server, with its token, and what reads its rollouts; one task waits.

    A process of its own, as in life: what a fork finds locked by a thread of a server stays so.
    """

    async def ask(question: Any) -> Any:
        client = agl.LightningStoreClient(url)
        try:
            return await question(client)
        finally:
            await client.close()

    async def fill(client: agl.LightningStoreClient) -> None:
        await client.add_resources(PROMPT)
        await client.enqueue_rollout("reward", mode="train")

    with served(own_command(tmp_path / "store.db"), tmp_path / "log") as url:
        asyncio.run(ask(fill))
        yield url, lambda: asyncio.run(ask(lambda client: client.query_rollouts()))


def test_agent_joins_a_store_by_an_address_with_a_token(stored, caplog, monkeypatch) -> None:
    monkeypatch.delenv("AGL_SERVER_TOKEN", raising=False)
    url, rollouts = stored
    with caplog.at_level("DEBUG"):
        Trainer(n_workers=1, max_tasks=1, tracer=agl.OtelTracer).fit(Agent(), url)
    assert [rollout.status for rollout in rollouts()] == ["succeeded"]
    token = without_token(url)[1]
    assert token, "the token stands in the address"
    assert token not in caplog.text
    assert "Baseline" not in caplog.text


def test_what_is_the_servers_is_refused_where_an_agent_joins_its_store(stored) -> None:
    url, _ = stored
    given = {"algorithm": "baseline", "adapter": {}, "llm_proxy": {}, "port": 4747}
    given |= {"store": agl.InMemoryLightningStore(), "initial_resources": PROMPT}
    for name, value in given.items():
        trainer = Trainer(tracer=agl.OtelTracer, **{name: value})
        with pytest.raises(ConfigError, match=f"leave {name} unused") as raised:
            trainer.fit(Agent(), url)
        assert url not in str(raised.value)
    with pytest.raises(ConfigError, match="store, run_dir unused"):
        Trainer(tracer=agl.OtelTracer, store=given["store"], run_dir="run").fit(Agent(), url)


def test_address_of_a_store_that_is_not_there_yet_is_logged_without_its_token(caplog) -> None:
    from agentlightning._v01 import of_store

    class EnoughError(Exception):
        pass

    def enough(seconds: float) -> None:
        raise EnoughError

    with pytest.MonkeyPatch.context() as patch, caplog.at_level("INFO", logger="agl.compat"):
        patch.setattr(of_store.time, "sleep", enough)
        with pytest.raises(EnoughError):
            of_store.is_store("http://agl:not-for-the-log@127.0.0.1:1")
    assert "waiting for the server at http://127.0.0.1:1" in caplog.text
    assert "not-for-the-log" not in caplog.text


def test_loader_takes_the_place_of_the_server_in_development() -> None:
    loader = DevTaskLoader(
        [Task(rollout_id=str(n), input="reward", mode="train") for n in (1, 2)], PROMPT
    )
    trainer = Trainer(dev=True, n_workers=1, max_tasks=2, strategy="shm", tracer=agl.OtelTracer)
    trainer.fit(Agent(), "http://127.0.0.1:1", dev_data=loader)
    assert [report.final_reward for report in loader.rollouts] == [0.5, 0.5]


def test_tutorials_command_serves_tasks() -> None:
    program = "from agentlightning._v01.command import main; main()"
    arguments = ["server", "start", "--port", "0", "--debug"]
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        line = next(line for line in server.stderr if line.startswith("serving"))
        address = line.rpartition(" ")[2].strip()
        assert AgentLightningClient(address).get_latest_resources() is None
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 0


def test_tutorials_command_refuses_what_it_cannot() -> None:
    for arguments, reason in (
        (["--openai-compatible-llm-uri", "http://x"], "agl gateway"),
        (["--host", "0.0.0.0"], "AGL_SERVER_TOKEN"),
    ):
        said = CliRunner().invoke(main, ["server", "start", *arguments])
        assert (said.exit_code, reason in said.output) == (2, True)


CONCEPTS = SEEDS / "001_242a460688c3a35b.txt"


def program(first: str, last: str) -> str:
    """A program of the tutorial, from a line to a line."""
    text = CONCEPTS.read_text("utf-8")
    start = text.index(first)
    return text[start : text.index(last, start) + len(last)] + "\n"


@pytest.mark.skipif(not CONCEPTS.is_file(), reason="needs the documents of the seeds")
def test_programs_of_a_tutorial_run_as_they_are(tmp_path: Path) -> None:
    agent = program("# Save this as simple_agent.py", "asyncio.run(main())")
    trainer = program("# Save this as run_trainer.py", "asyncio.run(main())")
    dev = program("async def main_dev_test", "asyncio.run(main_dev_test())")
    imports = trainer[: trainer.index("# A dummy task queue")]
    # Its own reader of the expected answer stumbles over the bracket after it: no reward is 1.
    for name, text, words in (
        ("simple_agent", agent, "Local Test 1 Reward: 0.0\n"),
        ("run_trainer", trainer, "Optimizer received reward for iter_4_task_4: 0.0\n"),
        ("dev_test", imports + dev, "Final Reward: 0.0\n"),
    ):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        ran = python(f"{name}.py", cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
        assert words in ran.stdout


def test_every_agent_of_agl_is_an_agent() -> None:
    import agl as ours

    @ours.rollout
    def agent(task: str) -> float:
        return 1.0

    class Mine(agl.LitAgent[str]):
        pass

    assert isinstance(agent, agl.LitAgent)
    assert not isinstance(agent, Mine)
