"""The client in TypeScript, compiled and run by Node."""

import json
import os
import shutil
from pathlib import Path
from subprocess import run

import pytest
from tests.interpreter import AGL, python

CLIENT = Path(__file__).parents[3] / "clients/typescript"

TRAIN = """
import { readFileSync } from "node:fs";
const { Client } = await import(process.argv[2]);
const client = new Client();
await client.uploadData(readFileSync("train.jsonl", "utf8"));
const result = await client.train(async (resource, task, signal) => {
  const messages = [{ role: "user", content: task.question }];
  const answer = await fetch(`${resource.modelApi}/chat/completions`, {
    method: "POST", signal, headers: { "content-type": "application/json" },
    body: JSON.stringify({ model: resource.modelName, messages }),
  });
  return Number((await answer.json()).choices[0].message.content.trim() === task.ground_truth);
}, { workers: 8, epochs: 2 });
await client.downloadModel("trained", result.checkpoints.at(-1));
console.log(JSON.stringify(result));
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    if not (CLIENT / "node_modules").is_dir() or shutil.which("npx") is None:
        pytest.skip("needs npm install in clients/typescript")
    out = tmp_path_factory.mktemp("dist")
    run(["npx", "tsc", "--outDir", out], cwd=CLIENT, check=True)
    (out / "package.json").write_text('{"type": "module"}')
    return out


@pytest.mark.nightly
def test_it_trains(server, compiled):
    (server.folder / "train.mjs").write_text(TRAIN)
    env = {**os.environ, "AGENT_LIGHTNING_SERVER_URL": server.user("tess")}
    words = ["node", "train.mjs", str(compiled / "src/index.js")]
    said = run(words, cwd=server.folder, env=env, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    result = json.loads(said.stdout)
    assert result["totalSteps"] == len(result["trainRewards"]) == 2
    assert (server.folder / "trained/model.safetensors").stat().st_size


def test_what_it_recorded_is_imported_and_makes_pairs(compiled, tmp_path):
    about = {"cwd": tmp_path, "capture_output": True, "text": True, "check": True}
    run(["node", str(compiled / "example/coach.js")], **about)
    python(*AGL, "import", "lessons.jsonl", "--path", "lessons.db", **about)
    pairs = python(*AGL, "export", "--as", "dpo", "--path", "lessons.db", **about).stdout
    assert json.loads(pairs)["chosen"][0]["content"] == "Breathe out, then lift."
