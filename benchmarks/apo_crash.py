"""Kill a prompt run at random moments, start it again, and compare it with one that was let alone.

``--kills 20`` kills as often. At the end the answer, the decision and the number of evaluations
must be the same as without, and no evaluation may have run again after the store had its result.
"""

import argparse
import asyncio
import json
import logging
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from apo_world import SEED_PROMPT, Proposer, make_tasks, reward

import agl
from agl_testing.echo_llm import EchoLLM

SECONDS_PER_TASK = 0.02


@agl.rollout
async def worker(
    task: dict[str, Any], prompt_template: agl.PromptTemplate, rollout: agl.Rollout
) -> float:
    """The same reward for the same evaluation, whenever it runs."""
    await asyncio.sleep(SECONDS_PER_TASK)
    place = (rollout.metadata or {})["prompts"]
    draw = (place["candidate"], place["split"], place["position"])
    return reward(prompt_template.template, task, *draw)


def train(folder: Path, url: str) -> None:
    """A run, begun or continued; writes ``answer.json`` at its end."""
    logging.disable(logging.WARNING)
    (folder / "working").touch()
    begun = time.perf_counter()
    algorithm = agl.APO(
        base_url=url,
        api_key="none",
        gradient_model="critic",
        apply_edit_model="editor",
        beam_width=2,
        branch_factor=3,
        beam_rounds=8,
        val_batch_size=16,
        unresponsive_seconds=2.0,
        run_dir=str(folder / "best"),
    )
    agl.Trainer(
        algorithm=algorithm,
        strategy="shm",
        n_runners=2,
        concurrency=64,
        store=agl.SqliteLightningStore(folder / "store.db"),
        initial_resources={"prompt_template": agl.PromptTemplate(template=SEED_PROMPT)},
    ).fit(worker, make_tasks(0, 28, "train"), val_dataset=make_tasks(0, 29, "val"))
    assert algorithm.result is not None
    answer = {
        name: value for name, value in algorithm.result.as_json().items() if name != "run_dir"
    }
    (folder / "answer.json").write_text(json.dumps(answer))
    (folder / "seconds").write_text(str(time.perf_counter() - begun))


def run_killed(folder: Path, url: str, kills: int, rng: random.Random, life: float) -> int:
    """Start, kill, start again until it ends; how many kills there were.

    Args:
        folder: Of the run.
        url: Of the proposer.
        kills: At most so many.
        rng: Of the moments.
        life: A process that is killed works for up to so many seconds before.
    """
    folder.mkdir()
    done = 0
    while True:
        (folder / "working").unlink(missing_ok=True)
        process = subprocess.Popen([sys.executable, __file__, "--train", str(folder), "--url", url])
        while process.poll() is None and not (folder / "working").exists():
            time.sleep(0.01)
        try:
            if process.wait(timeout=rng.uniform(0, life) if done < kills else None) != 0:
                raise RuntimeError(f"the run failed with {process.returncode}")
            return done
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            done += 1


async def paid_twice(folder: Path) -> tuple[int, int]:
    """Evaluations that ran again though the store had their result, and those that were lost."""
    store = agl.SqliteLightningStore(folder / "store.db")
    again = lost = 0
    for rollout in await store.query_rollouts():
        if (rollout.metadata or {})["prompts"]["kind"] != "evaluation":
            continue
        if rollout.status == "cancelled":
            lost += 1
            continue
        *earlier, last = await store.query_attempts(rollout.rollout_id)
        again += any(attempt.status in ("succeeded", "failed") for attempt in earlier)
        again += last.status != "succeeded"
        lost += len(earlier)
    await store.close()
    return again, lost


def compare(kills: int, seed: int) -> bool:
    """Whether a run that is killed so often comes to the same end."""
    rng, done, bad, lost_in_all = random.Random(seed), 0, 0, 0
    with (
        tempfile.TemporaryDirectory(prefix="apo-crash-") as folder,
        EchoLLM(Proposer(0, repeatable=True)) as llm,
    ):
        root = Path(folder)
        run_killed(root / "whole", llm.url, 0, rng, 0)
        whole = json.loads((root / "whole" / "answer.json").read_text())
        life = float((root / "whole" / "seconds").read_text())
        runs = 0
        while done < kills:
            runs += 1
            name = root / f"killed-{runs}"
            done += run_killed(name, llm.url, kills - done, rng, life)
            again, lost = asyncio.run(paid_twice(name))
            lost_in_all += lost
            same = json.loads((name / "answer.json").read_text()) == whole
            bad += again + (not same)
    print(
        f"{done} kills in {runs} runs of {whole['evaluations']} evaluations; {lost_in_all} "
        f"evaluations were lost and begun again; {bad} paid twice or with another answer"
    )
    return bad == 0


def main() -> int:
    """Compare once, or be the process that is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=Path)
    parser.add_argument("--url")
    options = parser.parse_args()
    if options.train is not None:
        train(options.train, options.url)
        return 0
    return 0 if compare(options.kills, options.seed) else 1


if __name__ == "__main__":
    sys.exit(main())
