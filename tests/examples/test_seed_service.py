"""The seeds' description of a training server: its blocks and commands run as they stand there.

Replaced are its model, its port, GPUs that a test does not have, and the number of a step.
"""

import __future__

import ast
import inspect
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any, get_origin, get_type_hints

import pytest
import requests
import yaml
from tests.compat.seed_blocks import REFERENCE, SEEDS, blocks_of, documents
from tests.plugins.service.conftest import model as model, until
from tests.waiting import free_port

from agl_service import Client, Resource, TrainingResult, Trajectory, Transition
from agl_service.settings import read_settings

pytestmark = documents
BLOCKS = blocks_of(REFERENCE, "python|json|bash") if SEEDS.is_dir() else {}
SIGNATURES = (11, 28, 51, 81, 94)
RECORDS = {106: Resource, 263: Transition, 285: Trajectory, 314: TrainingResult}
OPTIONS = {193: "grpo", 203: "ppo"}
RUN = (37, 64, 116, 135, 147, 162, 216, 236, 325, 335, 357, 378, 415)
MODEL = "meta-llama/Llama-3.2-3B-Instruct"
GIVEN = """
from functools import partial
import agl
from agent_lightning import Client, Resource, Task
from langchain_anthropic import ChatAnthropic

# It needs a model and a key, and would ask for 4,096 tokens, which is all that the model takes.
ChatAnthropic = partial(ChatAnthropic, model="policy", api_key="any", max_tokens=2)

@agl.operation(name="search")
def search(room):
    if room != "hall":
        raise LookupError(room)

@agl.operation(name="run_python")
def run_python(code):
    return {"stdout": "", "exit_code": 0}

def evaluate(response):
    print(response.content, file=open("answers", "a"))
    try:
        search(response.content.strip())
    except LookupError:
        return 0.0
    run_python("1")
    return 1.0
"""
"""What agents of the description call, and it does not show."""
EXAMPLES = """
import json
from typing import Any
reward, client, task = 0.5, Client(), Task(custom_field=1)
client.upload_data("examples.jsonl")
print(json.dumps([vars(client.evaluate(function)) for function in (agent_func, agent)]))
"""
GRPO: dict[str, Any] = {"group_size": 8, "kl": {"coefficient": 0.001}, "entropy_bonus": 0.01}
GRPO["clip"] = {"low": 0.2, "high": 0.2}
PPO = {"critic_learning_rate": 1e-5, "learning_rate": 5e-7, "gae_lambda": 0.95, "value_clip": 0.2}
FROM_FILE = {**GRPO, "server": {"replicas": 1, "max_model_tokens": 4096}, "dtype": "bfloat16"}
FROM_VARIABLES = {"type": "grpo", "learning_rate": 5e-7, "device": "cpu"}
RETRIES = {"agent": "retry", "timeout": "retry", "retries": 3}
FROM_CLIENT = {"failures": RETRIES, "rollouts": {"timeout_seconds": 60.0}}


def test_each_block_is_run_or_compared() -> None:
    assert sorted([*SIGNATURES, *RECORDS, *OPTIONS, *RUN]) == sorted(BLOCKS)


@pytest.mark.parametrize("line", SIGNATURES)
def test_signatures_are_those_of_the_description(line: int) -> None:
    text = re.sub(r"#.*|.*import.*", "", BLOCKS[line]).strip()
    code = re.sub(r"^client(\.| = )", "def ", text) + ": pass"
    names: dict[str, Any] = {}
    exec(compile(code, "", "exec", __future__.annotations.compiler_flag), names)
    name = re.findall(r"^def (\w+)", code)[0]
    said, client = inspect.signature(names[name]), Client("http://localhost")
    ours = inspect.signature(Client if name == "Client" else getattr(client, name))
    assert [*ours.parameters] == [*said.parameters]
    for parameter in said.parameters.values():
        default = ours.parameters[parameter.name].default
        assert parameter.default in (parameter.empty, default)
    if isinstance(returned := said.return_annotation, str):
        assert ours.return_annotation.__name__ == returned


@pytest.mark.parametrize("line", RECORDS)
def test_records_are_those_of_the_description(line: int) -> None:
    record = RECORDS[line]
    names: dict[str, Any] = {"List": list, "Transition": Transition}
    exec(BLOCKS[line], names)
    said, ours = names[record.__name__].__annotations__, get_type_hints(record)
    kinds = {name: (get_origin(kind) or kind) for name, kind in ours.items() if name in said}
    assert kinds == {name: (get_origin(kind) or kind) for name, kind in said.items()}
    for node in ast.walk(ast.parse(BLOCKS[line])):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Dict):
            record(**ast.literal_eval(node.value))


@pytest.mark.parametrize("line", OPTIONS)
def test_options_are_those_of_the_description(line: int, tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(BLOCKS[line], names)
    algorithm = {"name": OPTIONS[line], **names[f"{OPTIONS[line]}_config"]}
    (tmp_path / "server.yaml").write_text(json.dumps({"algorithm": algorithm}))
    read = read_settings(tmp_path / "server.yaml", {"model.path": "x"})
    assert read.algorithm.items() >= {"grpo": GRPO, "ppo": PPO}[OPTIONS[line]].items()


class Page:
    """The description in a folder: its texts with what is replaced, and its commands run."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.model, self.port = folder, str(model), free_port()
        self.begun: list[Popen[Any]] = []
        self.write("variables.sh", self.text(357))
        parts = re.split(r"^# (.*)\n", self.text(378), flags=re.M)
        self.commands = dict(zip(parts[1::2], parts[2::2], strict=True))

    def text(self, line: int) -> str:
        replaced = {MODEL: self.model, "8000": str(self.port), '"cuda"': '"cpu"'}
        replaced |= {"--gpus 4": "--gpus 1", "tensor_parallel: 4": "tensor_parallel: 1"}
        text = BLOCKS[line].replace("step-1000", "step-3")
        for old, new in replaced.items():
            text = text.replace(old, new)
        return text

    def write(self, name: str, *texts: str) -> None:
        (self.folder / name).write_text("\n".join(texts))

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()

    def begin(self, command: str, name: str = "command") -> "Popen[Any]":
        """Begin a command of a shell that has the description's variables."""
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        about: Any = {"cwd": self.folder, "env": {**os.environ, "PATH": path}}
        words = ["bash", "-euc", f". ./variables.sh\nexec {command}"]
        out, err = (self.folder / f"{name}.{kind}" for kind in ("out", "err"))
        with out.open("w") as stdout, err.open("w") as stderr:
            self.begun.append(Popen(words, stdout=stdout, stderr=stderr, **about))
        return self.begun[-1]

    def end(self, process: "Popen[Any]") -> str:
        assert process.wait() == 0, self.read("command.err")[-4000:]
        return self.read("command.out")

    def run(self, command: str) -> str:
        return self.end(self.begin(command))

    def start(self, command: str) -> None:
        self.server = self.begin(command, "server")
        until(lambda: "agl server: " in self.read("server.err"), self.server)

    def options(self, job: str) -> dict[str, Any]:
        """Of a job's algorithm."""
        return yaml.safe_load(self.read(f"agl-server/first/jobs/{job}/job.yaml"))["algorithm"]


@pytest.fixture
def page(tmp_path: Path, model: Path) -> Iterator[Page]:
    made = Page(tmp_path, model)
    # A job goes on from its newest checkpoint, and has none of the first 20 updates by default.
    made.start(f"{made.commands['Start Lightning Server'].strip()} checkpoints.every=1")
    yield made
    for process in made.begun:
        process.kill()
        process.wait()


def test_commands_and_scripts_run_through_a_server_that_is_killed(page: Page) -> None:
    client = Client(f"http://agl:optional-api-key@localhost:{page.port}")
    page.write("train.jsonl", BLOCKS[37] * 4)
    page.write("test.jsonl", BLOCKS[37])
    page.write("server_config.yaml", page.text(162))
    page.write("my_agent.py", GIVEN, *map(page.text, (216, 236, 116)))

    def kill_server_and(start: str) -> None:
        assert client.jobs()[-1]["state"] == "running"
        page.server.kill()
        page.server.wait()
        page.start(start)

    assert page.run(page.commands["Upload data"]) == "my-dataset\n"
    training = page.begin(page.commands["Start training"])
    until(lambda: client.jobs() and client.jobs()[0]["checkpoints"], training)
    command = page.commands["Start Lightning Server"]
    kill_server_and(command.replace("server start", "server start server_config.yaml"))
    assert client.jobs()[0]["step"] < 3
    trained = json.loads(page.end(training))
    assert trained["total_steps"] == 3 == len(trained["train_rewards"])
    metrics = page.read(f"agl-server/first/jobs/{trained['job']}/run/metrics.jsonl")
    lines = [json.loads(line) for line in metrics.splitlines()]
    starts = [line["generation"] for line in lines if "reward/mean" in line]
    assert (starts[0], starts[-1]) == (1, 2)
    assert page.options(trained["job"]).items() >= {**FROM_VARIABLES, **FROM_CLIENT}.items()
    for trajectory in client.trajectories(trained["job"]):
        tools = 0.3 + 0.5 if trajectory.transitions[0].output == "hall" else -0.2
        assert trajectory.total_reward == pytest.approx(tools + (tools > 0))
    evaluated = json.loads(page.run(page.commands["Evaluate model"]))
    assert evaluated["mean_reward"] == trained["test_rewards"][-1]
    assert page.options(evaluated["job"]).items() >= {**FROM_FILE, **FROM_VARIABLES}.items()
    assert trained["checkpoints"][-1] in page.run("agent-lightning model list")
    page.run(page.commands["Download model"])
    assert (page.folder / "trained_model/model.safetensors").exists()
    serving = page.begin("agent-lightning model serve --output served --port 0", "served")
    until(lambda: "is served at http://" in page.read("served.err"), serving)
    url = page.read("served.err").split()[-1]
    asked = {"model": "served", "messages": [{"role": "user", "content": "Capital of France?"}]}
    requests.post(f"{url}/chat/completions", json=asked).raise_for_status()

    page.write("answers")
    upload = "client = Client()\nclient.upload_data('train.jsonl')"
    page.write("usage.py", "from my_agent import *", upload, page.text(325))
    training = page.begin("python usage.py")
    until(lambda: page.read("answers").count("\n") > 8, training)
    kill_server_and(f"agent-lightning server start --port {page.port}")
    said, job = page.end(training), client.jobs()[-1]
    assert f"Final reward: {job['train_rewards'][-1]}\n" in said
    assert f"Best checkpoint: {job['id']}/step-000001\n" in said
    for url, said in (("http://localhost:1", "Cannot connect to Lightning Server\n"), (None, "")):
        page.write("errors.py", "from my_agent import *", f"server_url = {url!r}", page.text(335))
        assert page.run("python errors.py") == said
    options = {**FROM_VARIABLES, **FROM_CLIENT, "model": page.model}
    assert page.options(client.jobs()[-1]["id"]).items() >= options.items()
    [task] = re.findall(r"^# (\{.*)", BLOCKS[147], re.M)
    page.write("examples.jsonl", task.replace("{...}", '{"a": 1}'))
    page.write("examples.py", GIVEN, *map(page.text, (64, 147, 415)), EXAMPLES, page.text(135))
    *printed, evaluated = page.run("python examples.py").splitlines()
    assert printed == ["Q", "A", "{'a': 1}", "3"]
    assert [one["rewards"] for one in json.loads(evaluated)] == [[0.5], []]
    assert page.run("agent-lightning server status").count("finished") == 6
    page.run("agent-lightning server stop")
    assert page.server.wait() == 0
