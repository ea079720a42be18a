"""What ``resume.py`` kills of algorithms that train no weights here, and what they must come to.

Chat models, Azure and Tinker are played by ``tests/seams/remote_services.py``, in a process of its
own that nobody kills; it counts what it is asked for, and says so in ``OUT/outside.json``.
Besides what ``resume.py`` counts:

    paid twice     evaluations that ran again although the store had their result; jobs, or versions
                   saved at Tinker, beyond one per iteration
    left behind    evaluations that were neither used nor cancelled; training files, deployments
                   or weights that nobody needs
"""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

from resume_scenes import SEAMS, Scene, count_stale, count_wrong, read_lines, read_summary

import agl
from agl.types import Rollout

OUTSIDE = "outside.json"


@contextlib.contextmanager
def served(kind: str, out: Path) -> Generator[dict[str, Any]]:
    """A block in which an algorithm's outside answers; options of its script."""
    command = [sys.executable, str(SEAMS / "remote_services.py"), kind]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield {"url": json.loads(process.stdout.readline())}
        finally:
            out.mkdir(parents=True, exist_ok=True)
            (out / OUTSIDE).write_text(process.communicate()[0])


def read_outside(out: Path) -> dict[str, Any]:
    """What was asked of the outside of a run."""
    return json.loads((out / OUTSIDE).read_text())


# --- prompts


def prompt_and_decision(out: Path) -> dict[str, Any]:
    """All of the result but the run's own folder; the rounds' metrics."""
    result = json.loads((out / "run/result.json").read_text())
    del result["run_dir"]
    return {"result": result, "metrics": read_lines(out / "run/metrics.jsonl")}


def count_prompts(out: Path) -> Counter[str]:
    """What is wrong with the evaluations of a prompt run."""
    return asyncio.run(_count_prompts(out))


async def _count_prompts(out: Path) -> Counter[str]:
    wrong: Counter[str] = Counter()
    result = json.loads((out / "run/result.json").read_text())
    metrics = read_lines(out / "run/metrics.jsonl")
    rounds = Counter(line["step"] for line in metrics if "reward/mean" in line)
    wrong["metrics"] += sum(rounds[n] != 1 for n in range(1, max(rounds, default=0) + 1))
    evaluations: dict[str, list[Rollout]] = defaultdict(list)
    store = agl.SqliteLightningStore(out / "store.db")
    try:
        for rollout in await store.query_rollouts():
            place = (rollout.metadata or {})["prompts"]
            if place["kind"] == "evaluation":
                evaluations[json.dumps(place, sort_keys=True)].append(rollout)
            else:
                wrong["left behind"] += rollout.status != "succeeded"
        wrong["stale"] += await count_stale(store, out)
        for attempted in evaluations.values():
            ended = [one for one in attempted if one.status == "succeeded"]
            wrong["lost"] += not ended
            wrong["paid twice"] += max(len(ended) - 1, 0)
            wrong["left behind"] += sum(
                one.status not in ("succeeded", "failed", "cancelled") for one in attempted
            )
            for one in ended:
                *earlier, _ = await store.query_attempts(one.rollout_id)
                wrong["paid twice"] += any(each.status == "succeeded" for each in earlier)
    finally:
        await store.close()
    wrong["ledger"] += len(evaluations) != result["evaluations"] + result["evaluations_again"]
    return wrong


# --- training that is bought


def trained_elsewhere(what: str, out: Path) -> dict[str, Any]:
    """What was trained on, or came out; rewards of steps and of evaluations."""
    summary = read_summary(out)
    rewards = (summary["rewards"], summary["val_rewards"])
    return {what: read_outside(out)[what], "rewards": rewards}


def count_jobs(out: Path) -> Counter[str]:
    """What is wrong with a run at Azure."""
    wrong, outside = count_wrong(out), read_outside(out)
    iterations = len(read_summary(out)["rewards"])
    wrong["paid twice"] += outside["jobs"] - iterations + outside["uploads"] - iterations
    wrong["left behind"] += outside["files"] + len(outside["deployments"]) - 1
    return wrong


def count_versions(out: Path) -> Counter[str]:
    """What is wrong with a run at Tinker; gradient steps that a kill cut off are taken again."""
    wrong, outside = count_wrong(out), read_outside(out)
    wrong["paid twice"] += sum(outside["saved"].values()) - len(read_summary(out)["rewards"])
    wrong["left behind"] += max(outside["kept"] - 2 * KEPT_VERSIONS, 0)
    return wrong


KEPT_VERSIONS = 2


def _scene(
    kind: str, result: Callable[[Path], dict[str, Any]], count: Callable[[Path], Counter[str]]
) -> Scene:
    return Scene(
        {},
        script=SEAMS / "seeded_remote_run.py",
        takes_services=True,
        outside=partial(served, kind),
        result=result,
        count=count,
    )


REMOTE_SCENES = {
    "apo": _scene("apo", prompt_and_decision, count_prompts),
    "gepa": _scene("gepa", prompt_and_decision, count_prompts),
    "azure-sft": _scene("azure-sft", partial(trained_elsewhere, "data"), count_jobs),
    "tinker": _scene("tinker", partial(trained_elsewhere, "weights"), count_versions),
}
