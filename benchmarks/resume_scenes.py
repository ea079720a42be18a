"""What ``resume.py`` kills: a short seeded run of each algorithm, and what it must come to.

A scene's script is started as ``python SCRIPT OUT OPTIONS``, with OPTIONS as JSON, and started
again so after each kill; OUT holds ``run``, the folder of the run, and ``store.db``.
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import agl
from agl_records.ledger.ledger import load_parts
from agl_records.ledger.tables import Accounts
from agl_runs.folders import known_run
from agl_runs.store import get_run

SEAMS = Path(__file__).parents[1] / "tests/seams"
OURS = ("algorithm", "runner", "supervisor")
SERVICES = ("store", "gateway")
"""Victims where store server and second gateway are processes of their own."""


def weights_and_rewards(out: Path) -> dict[str, Any]:
    """Digest of the weights; rewards of steps and of evaluations."""
    summary = read_summary(out)
    (weights,) = Path(summary.get("checkpoint") or summary["model"]).glob("*model.safetensors")
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    return {"weights": digest, "rewards": (summary["rewards"], summary["val_rewards"])}


def number_of_steps(out: Path) -> dict[str, Any]:
    """Of a run whose weights depend on time."""
    return {"steps": len(read_summary(out)["rewards"])}


def count_wrong(out: Path) -> Counter[str]:
    """What is wrong with the books of a run that has ended; see ``resume.py``."""
    return asyncio.run(_count(out))


def read_summary(out: Path) -> dict[str, Any]:
    """What the run wrote at its end."""
    return json.loads((out / "run/summary.json").read_text())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Lines of JSON."""
    return [json.loads(line) for line in path.read_text().splitlines()]


async def count_stale(store: agl.LightningStore, out: Path) -> int:
    """Attempts at rollouts of a dead start by runners of a later one."""
    # A start that was killed before it had written into the folder left a run of its own.
    run_id, _ = known_run(out / "run") or ("", 0)
    run = await get_run(store, run_id)
    assert run is not None
    attempts = [
        ((rollout.metadata or {})["generation"], attempt)
        for rollout in await store.query_rollouts()
        for attempt in await store.query_attempts(rollout.rollout_id)
        if attempt.worker_id is not None
    ]
    first_claim: dict[str | None, float] = {}
    for _, attempt in attempts:
        worker, time = attempt.worker_id, attempt.start_time
        first_claim[worker] = min(time, first_claim.get(worker, time))
    return sum(
        any(
            later.number > generation and later.start_time < first_claim[attempt.worker_id]
            for later in run.generations
        )
        for generation, attempt in attempts
    )


async def _count(out: Path) -> Counter[str]:
    wrong: Counter[str] = Counter()
    summary, said = read_summary(out), out.with_suffix(".log").read_text()
    metrics = read_lines(out / "run/metrics.jsonl")
    steps = Counter(line["step"] for line in metrics if "reward/mean" in line)
    expected = range(1, len(summary["rewards"]) + 1)
    wrong["metrics"] += sum(steps[step] != 1 for step in {*steps, *expected})
    wrong["other updates"] += said.count("gave other weights")
    store = agl.SqliteLightningStore(out / "store.db")
    try:
        records = [one.body for one in await store.query_documents("step")]
        rolled = [one["rollouts"] for one in records if "rollouts" in one]
        collected = [rollout_id for each in rolled for _, rollout_id in each]
        rollouts = await store.query_rollouts()
        statuses = {one.rollout_id: one.status for one in rollouts}
        wrong["lost"] += sum(statuses.get(one) != "succeeded" for one in collected)
        done = Counter(_place(one) for one in rollouts if one.status == "succeeded")
        wrong["repeated"] += sum(done.values()) - len(done)
        trained = Counter(
            item.key
            for part in await load_parts(store)
            for item in part.trained
            if item.kind == "call"
        )
        wrong["trained twice"] += sum(n > 1 for n in trained.values())
        wrong["stale"] += await count_stale(store, out)
        total = (await Accounts.read(store)).total.as_json()
    finally:
        await store.close()
    calls = total["calls"]
    wrong["ledger"] += (total["rollouts"]["total"], calls["total"], calls["trained"]) != tuple(
        summary[name] for name in ("rollouts", "calls", "calls_trained")
    )
    return wrong


def _place(rollout: agl.Rollout) -> tuple[Any, ...]:
    about = rollout.metadata or {}
    return rollout.mode, *(about.get(name) for name in ("step", "round", "group", "seed"))


@dataclass(frozen=True)
class Scene:
    """The run of one algorithm."""

    options: dict[str, Any]
    """For the script, besides ``algorithm``, ``runners`` and ``deterministic``."""
    script: Path = SEAMS / "seeded_run.py"
    victims: tuple[str, ...] = OURS
    takes_services: bool = True
    """Whether the script takes the options ``store``, the address of a store's server, and
    ``judge``, that of a gateway; every second run gets them."""
    result: Callable[[Path], dict[str, Any]] = weights_and_rewards
    """What an ended run came to, by name; each must be that of the undisturbed run."""
    count: Callable[[Path], Counter[str]] = count_wrong
    """How much is wrong with an ended run, by name; what is not in it counts as 0."""
    environment: dict[str, str] = field(default_factory=dict[str, str])
    """Added to that of the script."""
    outside: Callable[[Path], AbstractContextManager[dict[str, Any]]] = lambda out: nullcontext({})
    """A block in which what is outside of a run answers, and nobody kills it; gives options for the
    script."""


SCENES = {
    **{
        name: Scene({"steps": 4, "checkpoints": {"every": 2}, **options})
        for name, options in {
            "cispo": {},
            "distillation": {"kl": {"coefficient": 1e-3}},
            "grpo": {},
            "gspo": {"clip": {"low": 0.2, "high": 0.2}},
            "ppo": {"critic_learning_rate": 1e-3, "kl": {"coefficient": 1e-3}},
            "reinforce++": {"kl": {"coefficient": 1e-3}, "schedule": "linear"},
            "rloo": {"kl": {"coefficient": 1e-3, "target": 0.01}, "max_refills": 2},
        }.items()
    },
    "grpo adapter": Scene(
        {
            "algorithm": "grpo",
            "steps": 4,
            "checkpoints": {"every": 1, "keep_last": 1},
            "evaluation": {"every": 1},
        }
        | {"lora": {"rank": 2}, "kl": {"coefficient": 1e-3}}
    ),
    # Its algorithm is an option: rollouts of two more steps are under way when it is killed.
    "grpo ahead": Scene(
        {"algorithm": "grpo", "steps": 6, "checkpoints": {"every": 2}}
        | {"max_staleness": 2, "deterministic": False},
        result=number_of_steps,
    ),
    "sft": Scene({}, victims=(*OURS, "training", "model server")),
    "dpo": Scene({}, victims=(*OURS, "training", "model server")),
}
