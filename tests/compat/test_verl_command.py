"""``python -m agentlightning.verl``, and agents of 0.1 that come to it."""

import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.interpreter import python
from tests.models import entry
from tests.waiting import free_port

pytest.importorskip("agl_verl")
pytest.importorskip("agl_gateway")

import agentlightning as agl
from agentlightning.verl.entrypoint import config_of
from agl.errors import ConfigError
from agl_testing.echo_llm import EchoLLM

pytestmark = pytest.mark.plugins

COMMAND = [
    *("algorithm.adv_estimator=grpo", "data.train_batch_size=32", "data.truncation='error'"),
    *("actor_rollout_ref.actor.optim.lr=1e-6", "trainer.logger=['console','wandb']"),
]
"""Of 0.1's SQL agent, what is said in each way; ``tests/plugins/verl`` has all of its keys."""


@pytest.fixture
def tasks(tmp_path: Path) -> str:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"question": "one"}\n{"question": "two"}\n')
    return str(path)


def test_arguments_are_verls_own() -> None:
    config = config_of(["+trainer.x=1", "data.train_files=['a','b']", "trainer.lr=1e-6"])
    assert config == {"trainer": {"x": 1, "lr": 1e-6}, "data": {"train_files": ["a", "b"]}}
    with pytest.raises(ConfigError, match="expected key=value"):
        config_of(["trainer"])


@pytest.mark.skipif(find_spec("verl") is not None, reason="verl is installed")
def test_command_of_0_1_is_taken_and_says_what_to_install(tasks: str) -> None:
    files = [f"data.train_files={tasks}", f"data.val_files={tasks}"]
    ended = python("-m", "agentlightning.verl", "agentlightning.port=0", *files, *COMMAND)
    assert ended.returncode == 1
    assert "data.truncation='error' has no effect" in ended.stderr.replace("\n", " ")
    assert "verl is not installed" in ended.stderr
    assert "agl-verl[backend]" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "data.train_files=... is missing"),
        (["data.train_files=nowhere.parquet"], "nowhere.parquet: no such dataset file"),
        (["data.truncation=left"], "data.truncation is not used: a prompt is never cut"),
        (["trainer.nonsense=1"], "trainer.nonsense: unknown key"),
    ],
)
def test_what_the_command_cannot_do_is_refused_by_name(arguments, said, tasks) -> None:
    if arguments and "train_files" not in arguments[0]:
        arguments = [*arguments, f"data.train_files={tasks}"]
    ended = python("-m", "agentlightning.verl", *arguments)
    assert (ended.returncode, said in ended.stderr) == (2, True), ended.stderr


def test_adapter_of_triplets_becomes_that_of_rows() -> None:
    algorithm = agl.VERL({"data": {"train_batch_size": 2}})
    for adapter in (agl.TracerTraceToTriplet(agent_match="writer"), {"agent_match": "writer"}):
        made = agl.Trainer(algorithm=algorithm, adapter=adapter, strategy="shm").adapter
        assert type(made).__name__ == "TraceToRows"
        assert made.agent_match.pattern == "writer"  # type: ignore
    proxy = agl.LlmProxyTraceToTriplet()
    assert type(agl.Trainer(algorithm=algorithm, adapter=proxy).adapter).__name__ == "TraceToRows"


class Agent(agl.LitAgent[Any]):
    """As of 0.1: the model's address is that of the resource."""

    def training_rollout(self, task: Any, rollout_id: str, resources: Any) -> float:  # type: ignore
        import openai

        llm = resources["main_llm"]
        client = openai.OpenAI(base_url=llm.endpoint, api_key="dummy")
        asked = [{"role": "user", "content": task["question"]}]
        answer = client.chat.completions.create(model=llm.model, messages=asked)  # type: ignore
        return float(answer.choices[0].message.content == f"you said {task['question']}")


@pytest.mark.parametrize("comes_first", ["server", "agent"])
def test_agent_of_0_1_does_the_rollouts_of_a_server_that_is_a_store(comes_first: str) -> None:
    pytest.importorskip("openai")
    port = free_port()
    rewards: list[tuple[float | None, list[str]]] = []

    @agl.algo
    async def algorithm(store: Any, llm_proxy: Any, train_dataset: Any) -> None:
        await store.add_resources({"main_llm": llm_proxy.as_resource(model="m")})
        queued = [await store.enqueue_rollout(task, mode="train") for task in train_dataset]
        for each in queued:
            await store.wait_for_rollouts(rollout_ids=[each.rollout_id])
            spans = await store.query_spans(each.rollout_id)
            rewards.append((agl.find_final_reward(spans), [span.name for span in spans]))

    def serve() -> None:
        with EchoLLM(lambda request: f"you said {request['messages'][-1]['content']}") as llm:
            agl.Trainer(
                algorithm=algorithm,
                tracer=agl.OtelTracer(),
                strategy=agl.ClientServerExecutionStrategy("algorithm", server_port=port),
                llm_proxy={"model_list": [entry("m", llm.url)]},
            ).fit(Agent(), [{"question": "one"}, {"question": "two"}])

    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "import agentlightning as agl\n"
        "from test_verl_command import Agent\n"
        "agl.Trainer(n_workers=1, max_tasks=2, tracer=agl.OtelTracer()).fit(Agent(), sys.argv[2])\n"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent), f"http://127.0.0.1:{port}/"]
    server = threading.Thread(target=serve)
    if comes_first == "server":
        server.start()
    client = subprocess.Popen(command, stderr=subprocess.PIPE)
    if comes_first == "agent":
        server.start()
    _, said = client.communicate(timeout=100)
    server.join(60)
    assert client.returncode == 0, said.decode()
    assert [reward for reward, _ in rewards] == [1.0, 1.0]
    assert all("openai.chat.completion" in names for _, names in rewards)
