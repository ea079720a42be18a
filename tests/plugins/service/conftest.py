"""A training server in a process of its own, and a tiny model that it trains."""

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest
from tests.interpreter import AGL, python

pytest.importorskip("torch")

from agl_testing.tiny_model import tiny_model

ROOM_OF = {"ticking": "hall", "sizzling": "kitchen", "dripping": "bath", "rustling": "library"}
OPTIONS = (
    *("max_tokens=2", "learning_rate=3e-3", "group_size=8", "epochs=4", "entropy_bonus=0.02"),
    *("torch_threads=1", "checkpoints.every=2", "device=cpu"),
)
KEY = "chosen-for-the-first-user"
TEN_LINES = """
import json, sys
from anthropic import Anthropic
from openai import OpenAI
from agl_service import Client

def agent(resource, task):
    llm = OpenAI(base_url=resource.model_api, api_key="none", max_retries=0)
    messages = [{"role": "user", "content": task.question}]
    answer = llm.chat.completions.create(model=resource.model_name, messages=messages)
    return float(answer.choices[0].message.content.strip() == task["ground_truth"])

async def claude(resource, task):
    llm = Anthropic(base_url=resource.model_api, api_key="none", max_retries=0)
    messages = [{"role": "user", "content": task.question}]
    asked = {"model": resource.model_name, "messages": messages, "max_tokens": 2}
    return float(llm.messages.create(**asked).content[0].text.strip() == task.ground_truth)

if __name__ == "__main__":
    client = Client()
    client.upload_data("train.jsonl", "test.jsonl")
    if sys.argv[1] == "attach":
        result = client.attach(sys.argv[2], agent, nworkers=4)
    else:
        result = client.train(agent, nworkers=4, epochs=int(sys.argv[1]), eval_interval=5)
    evaluated = client.evaluate(claude, checkpoint=result.checkpoints[-1], nworkers=2)
    print(json.dumps({**vars(result), "evaluated": vars(evaluated)}))
"""


def until(holds: Callable[[], object], process: "Popen[Any]") -> None:
    while not holds():
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)


def write_tasks(folder: Path, room_of: dict[str, str]) -> None:
    tasks = [{"question": f"{s} where", "ground_truth": room} for s, room in room_of.items()]
    for name, often in (("train", 2), ("test", 1)):
        lines = "".join(f"{json.dumps(task)}\n" for task in tasks * often)
        (folder / f"{name}.jsonl").write_text(lines)


class Server:
    """``agl server start`` in a folder, which can be killed and started again."""

    process: "Popen[Any] | None" = None

    def __init__(self, folder: Path, model: Path, name: str = "server") -> None:
        self.folder, self.model, self.name, self.port = folder, model, name, 0
        write_tasks(folder, ROOM_OF)
        (folder / "ten.py").write_text(TEN_LINES)

    def start(self, *more: str) -> None:
        words = [*AGL, "server", "start", "--model", str(self.model), "--port", str(self.port)]
        words += more
        log = self.folder / f"{self.name}.log"
        about = {"cwd": self.folder, "env": {**os.environ, "AGENT_LIGHTNING_API_KEY": KEY}}
        with log.open("w") as err:
            self.process = Popen([sys.executable, *words, *OPTIONS], stderr=err, **about)
        until(lambda: "agl server: " in log.read_text(), self.process)
        self.port = int(log.read_text().rpartition(":")[2])

    def user(self, name: str) -> str:
        about = {"cwd": self.folder, "capture_output": True, "text": True}
        return python(*AGL, "server", "users", "add", name, **about).stdout.strip()

    def script(self, address: str, *arguments: str, cwd: Path | None = None) -> "Popen[str]":
        env = {**os.environ, "AGENT_LIGHTNING_SERVER_URL": address}
        about = {"cwd": cwd or self.folder, "env": env, "stdout": PIPE, "stderr": PIPE}
        return Popen([sys.executable, self.folder / "ten.py", *arguments], text=True, **about)

    def end(self) -> None:
        stopped = python(*AGL, "server", "stop", cwd=self.folder)
        assert (stopped.returncode, self.process.wait()) == (0, 0), stopped.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """It has learned that a room is asked for, and not which."""

    def heard(chance: random.Random) -> list[dict[str, str]]:
        sound, room = chance.choice(list(ROOM_OF)), chance.choice(list(ROOM_OF.values()))
        question = {"role": "user", "content": f"{sound} where"}
        return [question, {"role": "assistant", "content": room}]

    return tiny_model(tmp_path_factory.mktemp("model"), heard, steps=60)


@pytest.fixture
def server(request, model, tmp_path):
    made = Server(tmp_path, model)
    made.start(*getattr(request, "param", ()))
    yield made
    made.end()
