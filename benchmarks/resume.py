"""Kill a seeded run at random moments, go on with it each time, and count what was lost.

A deterministic run of the quickstart's task (``tests/seams/seeded_run.py``) is made once without
disturbance. Then runs with the same seed are killed with SIGKILL: the algorithm, which serves the
store and the gateway, a runner, the supervisor of the runners, or two of them at once, after a
random part of the time that the undisturbed run took; and started again with the same command until
they end. Of each run, by its store and its journal:

    other weights    the digest of the weights differs from that of the undisturbed run
    other rewards    those of some step or evaluation do
    lost             rollouts that a step has collected and that did not succeed
    trained twice    model calls that stand as trained in two accounts that count
    metrics          steps that stand twice in metrics.jsonl, or not at all
    other updates    steps that were trained again and gave other weights than the first time
    ledger           sums of the accounts that are not those of summary.json

    python benchmarks/resume.py --kills 20 --algorithm grpo --options '{"steps": 4}'

Exit code 1 when anything was lost, differs or stands twice.
"""

import argparse
import asyncio
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

import agl
from agl.cli.ledger_tables import as_json, read_accounts

SCRIPT = Path(__file__).parents[1] / "tests/seams/seeded_run.py"
VICTIMS = ("algorithm", "runner", "supervisor", "algorithm runner", "supervisor runner")
KILLS_OF_A_RUN = 4
NAMES = (
    *("other weights", "other rewards", "other updates"),
    *("lost", "trained twice", "metrics", "ledger"),
)
OPTIONS = {"grpo": {"steps": 4, "checkpoint_every": 2}, "sft": {}, "dpo": {}}


def start(out: Path, options: dict[str, Any]) -> "subprocess.Popen[bytes]":
    """Start the run in a folder, or go on with it."""
    with (out.with_suffix(".log")).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(SCRIPT), str(out), json.dumps(options)], stdout=log, stderr=log
        )


def kill(process: "subprocess.Popen[bytes]", names: str, chance: random.Random) -> list[str]:
    """Kill them; those that were there."""
    found: dict[str, list[psutil.Process]] = {"algorithm": [psutil.Process(process.pid)]}
    found["supervisor"] = found["algorithm"][0].children()[:1]
    found["runner"] = [child for each in found["supervisor"] for child in each.children()]
    killed: list[str] = []
    for name in names.split():
        if found[name]:
            chance.choice(found[name]).kill()
            killed.append(name)
    return killed


def disturb(
    out: Path, options: dict[str, Any], seconds: float, chance: random.Random
) -> Counter[str]:
    """Run it to its end, killed on the way; how often who was."""
    kills: Counter[str] = Counter()
    for _ in range(20):
        process = start(out, options)
        try:
            if kills.total() < KILLS_OF_A_RUN:
                process.wait(chance.uniform(0.0, seconds))
            else:
                process.wait()
        except subprocess.TimeoutExpired:
            names = chance.choice(VICTIMS)
            kills.update(kill(process, names, chance))
        if process.wait() == 0:
            return kills
        wait_until_gone(out)
    raise RuntimeError(f"{out} did not come to its end in 20 lives; see {out.with_suffix('.log')}")


def wait_until_gone(out: Path) -> None:
    """Wait for what is left of a killed run: its supervisor ends the runners."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if not any(
            str(out) in each.info["cmdline"]
            for each in psutil.process_iter(["cmdline"])
            if each.info["cmdline"]
        ):
            return
        time.sleep(0.1)


def result(out: Path) -> tuple[str, Any]:
    """Digest of the weights; rewards of steps and evaluations."""
    summary = json.loads((out / "run/summary.json").read_text())
    weights = Path(summary.get("checkpoint") or summary["model"]) / "model.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    return digest, (summary["rewards"], summary["val_rewards"])


async def look(out: Path, expected: tuple[str, Any]) -> Counter[str]:
    """What is wrong with a run that has ended."""
    wrong: Counter[str] = Counter()
    digest, rewards = result(out)
    wrong["other weights"] += digest != expected[0]
    wrong["other rewards"] += rewards != expected[1]
    lines = [json.loads(line) for line in (out / "run/metrics.jsonl").read_text().splitlines()]
    steps = Counter(line["step"] for line in lines if "reward/mean" in line)
    wrong["metrics"] += sum(steps[step] != 1 for step in {*steps, *range(1, len(rewards[0]) + 1)})
    journal = [json.loads(line) for line in (out / "run/journal.jsonl").read_text().splitlines()]
    weights = {(one["key"], one["weights"]) for one in journal if "weights" in one}
    wrong["other updates"] += len(weights) - len({key for key, _ in weights})
    collected = [
        rollout_id
        for entry in journal
        if entry["event"] == "collected"
        for _, rollout_id in entry["rollouts"]
    ]
    store = agl.SqliteLightningStore(out / "store.db")
    try:
        rollouts = {one.rollout_id: one.status for one in await store.query_rollouts()}
        wrong["lost"] += sum(rollouts.get(one) != "succeeded" for one in collected)
        trained = Counter(
            item.key
            for part in await store.query_ledger_parts(lost=False)
            for item in part.trained
            if item.kind == "call"
        )
        wrong["trained twice"] += sum(n > 1 for n in trained.values())
        total = as_json((await read_accounts(store)).total)
    finally:
        await store.close()
    summary = json.loads((out / "run/summary.json").read_text())
    calls = total["calls"]
    wrong["ledger"] += (total["rollouts"]["total"], calls["total"], calls["trained"]) != tuple(
        summary[name] for name in ("rollouts", "calls", "calls_trained")
    )
    return wrong


def main() -> None:
    """Kill and count."""
    parser = argparse.ArgumentParser(description="kill a run, go on with it, count what was lost")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--algorithm", choices=sorted(OPTIONS), default="grpo")
    parser.add_argument("--runners", type=int, default=2)
    parser.add_argument("--options", type=json.loads, default={})
    given = parser.parse_args()
    options = {"algorithm": given.algorithm, "runners": given.runners, "deterministic": True}
    options |= {**OPTIONS[given.algorithm], **given.options}
    chance, kills, wrong = random.Random(given.seed), Counter[str](), Counter[str]()
    home = Path(tempfile.mkdtemp(prefix="agl-resume-"))
    begun = time.monotonic()
    if start(home / "undisturbed", options).wait() != 0:
        sys.exit((home / "undisturbed.log").read_text())
    seconds = time.monotonic() - begun
    expected = result(home / "undisturbed")
    print(f"undisturbed: {seconds:.0f} s, weights {expected[0][:12]}", flush=True)
    runs = 0
    while kills.total() < given.kills:
        out = home / f"run-{(runs := runs + 1)}"
        of_this = disturb(out, options, seconds, chance)
        found = asyncio.run(look(out, expected))
        kills, wrong = kills + of_this, wrong + found
        print(f"{out.name}: killed {dict(of_this)}; wrong {dict(+found) or 'nothing'}", flush=True)
    print(f"{kills.total()} kills in {runs} runs: {dict(kills)}")
    for name in NAMES:
        print(f"{name:14} {wrong[name]}")
    print(f"folders: {home}")
    sys.exit(bool(+wrong))


if __name__ == "__main__":
    main()
