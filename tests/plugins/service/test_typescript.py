"""The client in TypeScript, compiled and run by Node."""

import asyncio
import itertools
import json
import os
import re
import shutil
import threading
import time
from collections import Counter
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import run

import pytest
import requests
from tests import fork_server

import agl
from agl.cli import cli
from agl_http.tokens import Tokens
from agl_service.trajectories import read_trajectories
from agl_testing.echo_llm import EchoLLM

ROOT = Path(__file__).parents[3]
CLIENT = ROOT / "clients/typescript"
RECORDED_ATTEMPTS = ROOT / "examples/apo/recorded_attempts.py"

TRAIN = """
import { readFileSync } from "node:fs";
const client = new Client();
const agent = async (resource, task, signal) => {
  const messages = [{ role: "user", content: task.question }];
  const answer = await fetch(`${resource.modelApi}/chat/completions`, {
    method: "POST", signal, headers: { "content-type": "application/json" },
    body: JSON.stringify({ model: resource.modelName, messages }),
  });
  return Number((await answer.json()).choices[0].message.content.trim() === task.ground_truth);
};
const data = await client.uploadData(readFileSync("train.jsonl", "utf8"));
const result = await client.train(agent, { workers: 8, epochs: 2 });
await client.downloadModel("trained");
const test = [{ question: "x", ground_truth: "y" }];
const evaluated = await client.evaluate(agent, { test });
const trajectories = [];
for await (const trajectory of client.trajectories(result.job)) trajectories.push(trajectory);
const before = await client.data();
for (const { id } of before) await client.deleteData(id);
print({ data, result, evaluated, trajectories, before, after: await client.data() });
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    if not (CLIENT / "node_modules").is_dir() or shutil.which("npx") is None:
        pytest.skip("needs npm install in clients/typescript")
    out = tmp_path_factory.mktemp("dist")
    run(["npx", "tsc", "--outDir", out], cwd=CLIENT, check=True)
    package = json.loads((CLIENT / "package.json").read_text())
    places = {name: package[name].removeprefix("dist/") for name in ("main", "types")}
    (out / "package.json").write_text(json.dumps({"type": "module", **places}))
    return out


@pytest.fixture
def node(compiled, tmp_path):
    """Runs a script that has the client; what it prints."""

    def run_script(script, url="", cwd=tmp_path, seconds=120):
        names = "const { Client, Recorder } = await import(process.argv[2]);"
        prints = "const print = (value) => console.log(JSON.stringify(value));"
        (cwd / "script.mjs").write_text(f"{names}\n{prints}\n{script}")
        words = ["node", "--trace-warnings", "script.mjs", str(compiled / "src/index.js")]
        about = {"capture_output": True, "text": True, "timeout": seconds}
        env = {**os.environ, "AGENT_LIGHTNING_SERVER_URL": url}
        ended = run(words, cwd=cwd, env=env, **about)
        assert ended.returncode == 0, ended.stderr
        assert ended.stderr == ""
        return json.loads(ended.stdout)

    return run_script


@pytest.mark.nightly
def test_it_trains_and_evaluates_and_deletes(server, node):
    said = node(TRAIN, server.user("tess"), server.folder)
    result, (trajectory, *_) = said["result"], said["trajectories"]
    assert result["totalSteps"] == len(result["trainRewards"]) == 2
    assert (server.folder / "trained/model.safetensors").stat().st_size
    assert not [*server.folder.glob("trained/*.partial")]
    assert (said["evaluated"]["rewards"], said["evaluated"]["meanReward"]) == ([0], 0)
    assert said["evaluated"]["checkpoint"] == result["checkpoints"][-1]
    (transition,) = trajectory["transitions"]
    assert transition["input"].endswith(" where")
    assert transition["output"]
    assert trajectory["totalReward"] == transition["reward"] in (0, 1)
    assert trajectory["metadata"]["numSteps"] == 1
    assert said["data"] in [one["id"] for one in said["before"]]
    assert [one["train_tasks"] for one in said["before"] if one["id"] != said["data"]] == [1]
    assert said["after"] == []


FILE = bytes(range(256)) * 1000
TRAINED = {"id": "j", "best": "", "checkpoints": {"step-000001": ["model.safetensors"]}}
DOWNLOAD = """
const client = new Client(undefined, { timeoutMs: 500, maxRetries: 1 });
const ended = client.downloadModel("trained", "j/step-000001");
print(await ended.then(() => "whole", ({ name, message }) => `${name} ${message}`));
"""


class Faulty(BaseHTTPRequestHandler):
    """A server that answers as its ``reply`` says: a status and pieces, a number a pause between;
    None breaks the connection."""

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        reply = self.server.reply(self, body)
        if reply is not None:
            status, *pieces = reply
            self.send_response(status)
            length = sum(len(piece) for piece in pieces if isinstance(piece, bytes))
            self.send_header("Content-Length", str(max(length, self.server.length(self.path))))
            self.end_headers()
            with suppress(ConnectionError):  # the client has left
                for piece in pieces:
                    if isinstance(piece, bytes):
                        self.wfile.write(piece)
                    else:
                        time.sleep(piece)

    do_GET = do_POST = answer

    def log_message(self, *_):
        pass


@contextmanager
def faulty(reply, length=lambda path: 0):
    there = ThreadingHTTPServer(("127.0.0.1", 0), Faulty)
    there.reply, there.length, there.daemon_threads = reply, length, True
    threading.Thread(target=there.serve_forever).start()
    try:
        yield f"http://127.0.0.1:{there.server_port}"
    finally:
        there.shutdown()
        there.server_close()


SLOW = [part for at in range(0, len(FILE), 32_000) for part in (FILE[at : at + 32_000], 0.15)]


@pytest.mark.parametrize(
    ("replies", "said"),
    [
        ([[FILE[:1000]]] * 2, "ServerConnectionError http.*no whole one.*"),
        ([[FILE[:1000]], [FILE]], "whole"),
        ([[FILE[:1000], 3.0]] * 2, "ServerConnectionError .*silent for 500 ms.*"),
        ([SLOW], "whole"),
    ],
    ids=["breaks off", "breaks off once", "falls silent", "is slow"],
)
def test_a_download_is_whole_or_not_there(node, tmp_path, replies, said):
    left = list(replies)

    def reply(request, _):
        if "checkpoints" in request.path:
            return 200, *left.pop(0)
        return 200, json.dumps([TRAINED] if request.path == "/jobs" else TRAINED).encode()

    with faulty(reply, lambda path: len(FILE) if "checkpoints" in path else 0) as url:
        answer = node(DOWNLOAD, url)
    assert re.fullmatch(said, answer), answer
    model = tmp_path / "trained/model.safetensors"
    assert model.read_bytes() == FILE if said == "whole" else not model.exists()
    assert left == []


CHECKPOINTS = """
const client = new Client();
const said = [];
for (const name of ["latest", "best", "checkpoints/old/step-1", "j/step-4", "j/step-9"]) {
  const ended = client.downloadModel(name.replaceAll("/", " "), name);
  said.push(await ended.catch(({ message }) => message));
}
print(said);
"""


def test_a_checkpoint_has_the_names_that_it_has_in_python(node, tmp_path):
    def job(name, *steps):
        there = {f"step-{step:06d}": ["config.json"] for step in steps}
        return {"id": name, "best": "step-000002" if 2 in steps else "", "checkpoints": there}

    def reply(request, _):
        if "checkpoints" in request.path:
            return 200, request.path.encode()
        return 200, json.dumps([job("old", 1), job("j", 2, 4), job("new")]).encode()

    with faulty(reply) as url:
        *_, said = node(CHECKPOINTS, url)
    read = {one.parent.name: one.read_text() for one in tmp_path.rglob("config.json")}
    assert read == {
        "latest": "/jobs/j/checkpoints/step-000004/config.json",
        "best": "/jobs/j/checkpoints/step-000002/config.json",
        "checkpoints old step-1": "/jobs/old/checkpoints/step-000001/config.json",
        "j step-4": "/jobs/j/checkpoints/step-000004/config.json",
    }
    assert said.startswith("no checkpoint j/step-9; there are: old/step-000001, j/step-000002")


TRAJECTORIES = """
const trajectories = [];
for await (const one of new Client().trajectories("j")) trajectories.push(one);
print(trajectories);
"""


def test_trajectories_are_those_of_python(node):
    def call(rollout_id, prompt, answer, reward):
        about = {"rollout_id": rollout_id, "span_id": "s"}
        return {"prompt": prompt, "completion": [answer], "reward": reward, "provenance": about}

    asked = {"role": "user", "content": "Wo ist die Tür? \u2028"}
    tool = {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}
    calls = [
        call("a", [asked], tool, None),
        call("a", [asked, tool], {"role": "assistant", "content": "Da."}, 0.5),
        call("b", [asked], {"role": "assistant", "content": "Dort."}, 1.0),
    ]
    lines = [json.dumps(one, ensure_ascii=False).encode() for one in calls]
    body = b"".join(b"%s\n" % line for line in lines)
    pieces = [part for byte in body for part in (bytes([byte]), 0.0)]  # each in a piece of its own
    with faulty(lambda *_: (200, *pieces)) as url:
        found = node(TRAJECTORIES, url)

    def camel(value):
        if isinstance(value, dict):
            names = {"task_id", "total_reward", "num_steps"}
            return {
                re.sub("_(.)", lambda at: at[1].upper(), name)
                if name in names or (name == "tool_calls" and "provenance" in value)
                else name: camel(one)
                for name, one in value.items()
            }
        return [camel(one) for one in value] if isinstance(value, list) else value

    assert found == [camel(asdict(one)) for one in read_trajectories(lines)]


def test_a_server_that_hangs_is_waited_for_as_long_as_it_may_be_away(node):
    script = """
    const client = new Client(undefined, { timeoutMs: 500, maxRetries: 10 });
    print(await client.attach("j").catch(({ name, message }) => `${name} ${message}`));
    """
    with faulty(lambda *_: (200, 30.0), lambda _: 10) as url:
        said = node(script, url, seconds=20)
    assert re.fullmatch("ServerConnectionError .*silent for 500 ms.*", said)


TOKEN = "a-token-of-the-test-1"


@asynccontextmanager
async def running_job(fault, *questions):
    """A job of a real store. ``fault`` of a path, and how often it was asked, says which status is
    answered instead, or that the answer is lost; None for neither."""
    server = agl.LightningStoreServer(agl.InMemoryLightningStore(), port=0, token=TOKEN)
    await server.start()
    asked = Counter()

    def store(method, path, headers, body=b""):
        url = f"{server.address}{path}"
        return requests.request(method, url, headers=headers, data=body, timeout=60)

    def answer(path):
        if path.startswith("/jobs/j/model-token"):
            return "token"
        if not path.startswith("/jobs/j") or path.endswith("/queue"):
            return None
        rollouts = store("GET", "/v1/agl/rollouts", server.headers).json()["items"]
        is_over = all(one["status"] in ("succeeded", "failed") for one in rollouts)
        return {
            **{"id": "j", "kind": "train", "step": 1, "train_rewards": [], "test_rewards": []},
            **{"checkpoints": {}, "seconds": 1, "state": "finished" if is_over else "running"},
            **{"path": "/runs/ann/j", "token": Tokens(TOKEN).issue("runner")},
        }

    def reply(request, body):
        path = request.path
        asked[path] += 1
        found = fault(path, asked[path])
        if isinstance(found, int):
            return found, b"{}"
        if "/store/" in path:
            said = store(
                request.command, path.removeprefix("/runs/ann/j/store"), dict(request.headers), body
            )
            result = said.status_code, said.content
        else:
            result = 200, json.dumps(answer(path)).encode()
        return None if found == "lost" else result

    with faulty(reply) as url:
        llm = agl.LLM(endpoint=f"{url}/v1", model="none")
        await server.add_resources({"llm": llm})
        for question in questions:
            seconds = 0.3005 if question == "hangs" else None
            config = agl.RolloutConfig(timeout_seconds=seconds)
            await server.enqueue_rollout({"question": question}, config=config)
        yield server, url
    await server.stop()


async def test_a_claim_whose_answer_was_lost_is_made_once(node):
    script = 'await new Client().attach("j", () => 1, { workers: 1 }); print(null);'

    def lost(path, number):
        return "lost" if path.endswith("dequeue") and number == 1 else None

    async with running_job(lost, "1?") as (store, url):
        await asyncio.to_thread(node, script, url)
        (rollout,) = await store.query_rollouts()
    assert (rollout.status, rollout.attempt.sequence_id) == ("succeeded", 1)


IGNORES = """
const agent = (_, { question }) => {
  if (question === "throws") throw new Error("no");
  return question === "hangs" ? new Promise(() => {}) : 1;
};
await new Client().attach("j", agent, { workers: 1 });
print(null);
"""


async def test_an_agent_that_ignores_its_limit_holds_no_worker(node):
    tasks = "hangs", "throws", "answers"
    async with running_job(lambda *_: None, *tasks) as (store, url):
        await asyncio.to_thread(node, IGNORES, url)
        attempts = [one.attempt for one in await store.query_rollouts()]
    assert [one.status for one in attempts] == ["timeout", "failed", "succeeded"]
    assert attempts[0].error.boundary == "timeout"
    assert (attempts[1].error.boundary, attempts[1].error.message) == ("agent", "no")


LEAVES = """
const leaving = new AbortController();
const agent = () => (setTimeout(() => leaving.abort(), 100), new Promise(() => {}));
const ended = new Client().attach("j", agent, { workers: 1, signal: leaving.signal });
print(await ended.catch((error) => error.name));
"""


async def test_who_leaves_waits_for_no_agent_and_gives_its_rollouts_back(node):
    async with running_job(lambda *_: None, "1?") as (store, url):
        assert await asyncio.to_thread(node, LEAVES, url) == "AbortError"
        assert [one.status for one in await store.query_rollouts()] == ["requeuing"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/jobs/j?", "agl server users add"),
        ("/dequeue", "see what else listens there"),
        ("/model-token", "agl server users add"),
    ],
)
async def test_a_refused_token_is_said_at_once_and_fails_no_rollout(node, path, said):
    script = """
    const ended = new Client().attach("j", () => 1, { workers: 1 });
    print(await ended.catch(({ name, message }) => `${name} ${message}`));
    """
    async with running_job(lambda asked, _: 401 if path in asked else None, "1?") as (store, url):
        answer = await asyncio.to_thread(node, script, url, seconds=20)
        (rollout,) = await store.query_rollouts()
    assert answer.startswith("AuthenticationError http://127.0.0.1")
    assert said in answer
    assert rollout.status in ("queuing", "requeuing")


GOOD, BAD = "Breathe out, then lift.", "Just lift."
HINT = "Say how to breathe."


def test_a_coach_is_recorded_rewarded_imported_and_its_prompt_optimised(
    compiled, here, monkeypatch
):
    answers, critiques = itertools.cycle([BAD, GOOD]), []

    def model(body):
        first = body["messages"][0]["content"]
        if body["model"] == "coach":
            return GOOD if HINT in first else next(answers)
        if not first.startswith("An agent was told"):
            return f"You are a coach. {HINT}"
        critiques.append(first)
        return "It does not ask for the breath."

    def learn() -> str:
        """What the README has people run; what its last command prints."""
        run(["node", str(compiled / "example/coach.js")], check=True)
        for words in (
            ("import", "lessons.jsonl"),
            ("export", "--as", "dpo", "-o", "pairs.jsonl"),
            ("export", "--as", "messages", "-o", "messages.jsonl"),
        ):
            cli.main([*words, "--path", "lessons.db"], standalone_mode=False)
        words = "messages.jsonl", "--edits", "1", "--output", "coach-prompt.txt"
        ended = fork_server.run([RECORDED_ATTEMPTS, *words], env=dict(os.environ), cwd=here)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    with EchoLLM(model) as llm:
        for name, value in (("BASE_URL", llm.url), ("API_KEY", "none")):
            monkeypatch.setenv(f"OPENAI_{name}", value)
        monkeypatch.setenv("COACH_MODEL", "coach")
        assert "0.600 over 4 attempts: 'You are a coach. Answer in one sentence.'" in learn()
        assert Path("coach-prompt.txt").read_text() == f"You are a coach. {HINT}"
        assert f"reward 0.3\nuser: How do I lift a heavy box?\nassistant: {BAD}" in critiques[0]
        pairs = [json.loads(line) for line in Path("pairs.jsonl").read_text().splitlines()]
        assert [one["chosen"][0]["content"] for one in pairs] == [GOOD] * 2
        assert [one["rejected"][0]["content"] for one in pairs] == [BAD] * 2
        ranked = learn().splitlines()
    assert ranked[0] == f"0.900 over 4 attempts: 'You are a coach. {HINT}'"
    assert ranked[1].startswith("0.600 over 4 attempts: 'You are a coach. Answer")
