"""What a training server adds to a run: the same training by ``Client.train`` and by ``agl run``.

    python benchmarks/service.py --rounds 3 --steps 60

In turn, each in a process of its own: the client's script before a server that runs, and the
command. Seconds are of the whole process, and of all updates with their rollouts.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from agl.cli.shared import print_table
from agl_testing.tiny_model import tiny_model

ROOMS = {"ticking": "hall", "sizzling": "kitchen", "dripping": "bath", "rustling": "library"}
AGENT = """
import openai

def says(url, name, question):
    llm = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    messages = [{"role": "user", "content": question}]
    answer = llm.chat.completions.create(model=name, messages=messages)
    return answer.choices[0].message.content.strip()
"""
OURS = """
import agl
from says import says

@agl.rollout
def agent(task, llm: agl.LLM) -> float:
    return float(says(llm.endpoint, llm.model, task["question"]) == task["ground_truth"])
"""
CLIENT = """
import sys
from agl_service import Client
from says import says

def agent(resource, task):
    return float(says(resource.model_api, resource.model_name, task.question) == task.ground_truth)

if __name__ == "__main__":
    client = Client()
    client.upload_data("train.jsonl")
    print(client.train(agent, nworkers=2, epochs=int(sys.argv[1]), batch_size=4).job)
"""
OPTIONS = {
    **{"max_tokens": 2, "learning_rate": 3e-3, "group_size": 8, "epochs": 4, "device": "cpu"},
    **{"torch_threads": 1, "checkpoints": {"every": 20, "keep_last": 2}},
}


def main() -> None:
    """Take turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        rows = compare(Path(name), given.rounds, given.steps)
    print_table(["round", "agl run", "a server", "ratio", "updates", "server's", "ratio"], rows)


def compare(folder: Path, rounds: int, steps: int) -> list[list[str]]:
    """Rows of the table, the last with medians."""

    def heard(chance):
        question = {"role": "user", "content": f"{chance.choice(list(ROOMS))} where"}
        return [question, {"role": "assistant", "content": chance.choice(list(ROOMS.values()))}]

    model = tiny_model(folder / "model", heard, steps=60)
    tasks = [{"question": f"{sound} where", "ground_truth": room} for sound, room in ROOMS.items()]
    (folder / "train.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    for file, text in (("says", AGENT), ("ours", OURS), ("client", CLIENT)):
        (folder / f"{file}.py").write_text(text)
    algorithm = {"type": "grpo", "model": str(model), **OPTIONS}
    algorithm |= {"steps": steps, "groups_per_step": len(tasks)}
    config = {"agent": "ours:agent", "train": "train.jsonl", "algorithm": algorithm}
    config["strategy"] = {"type": "cs", "n_runners": 2}
    (folder / "agl.yaml").write_text(json.dumps(config))
    agl = [sys.executable, "-c", "from agl.cli import main; main()"]
    options = [f"{key}={json.dumps(value)}" for key, value in OPTIONS.items()]
    words = [*agl, "server", "start", "--model", str(model), "--port", "0", *options]
    log = folder / "server.log"
    with log.open("w") as err:
        server = subprocess.Popen(words, cwd=folder, stderr=err)
    try:
        while not (said := re.search(r"agl server: (\S+)", log.read_text())):
            assert server.poll() is None, log.read_text()
            time.sleep(0.1)
        env = {**os.environ, "AGENT_LIGHTNING_SERVER_URL": said[1]}
        found = []
        for number in range(rounds):
            run = [*agl, "run", "agl.yaml", f"run_dir=run-{number}"]
            alone = timed(run, folder, env)[0], seconds_of_updates(folder / f"run-{number}")
            whole, out = timed([sys.executable, "client.py", str(steps)], folder, env)
            (job,) = (folder / "agl-server").glob(f"*/jobs/{out.split()[-1]}")
            found.append((*alone, whole, seconds_of_updates(job / "run")))
    finally:
        server.terminate()
        server.wait()
    found.append(tuple(statistics.median(column) for column in zip(*found, strict=True)))
    names = [*map(str, range(rounds)), "median"]
    rows = zip(names, found, strict=True)
    return [
        [name, f"{a:.1f}", f"{b:.1f}", f"{b / a:.3f}", f"{c:.1f}", f"{d:.1f}", f"{d / c:.3f}"]
        for name, (a, c, b, d) in rows
    ]


def timed(command: list[str], folder: Path, env: dict[str, str]) -> tuple[float, str]:
    """Seconds of a command that must succeed, and what it wrote."""
    began = time.monotonic()
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return time.monotonic() - began, done.stdout


def seconds_of_updates(run: Path) -> float:
    """Rollouts and training of all updates."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return sum(line.get("time/step", 0.0) for line in lines)


if __name__ == "__main__":
    main()
