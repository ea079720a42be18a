"""Kill a seeded run at random moments, go on with it each time, and count what was lost.

A run of an algorithm (``resume_scenes.py``) is made once without disturbance. Then runs with the
same seed are killed with SIGKILL: the algorithm, which serves the store and the gateway, a runner,
the supervisor of the runners, or any two of them at once, after a random part of the time that the
undisturbed run took; and started again with the same command until they end. Of each run:

    other <result>   what it came to (weights, rewards, a prompt) is not what the undisturbed run
                     came to, bit for bit
    lost             rollouts that a step has collected and that did not succeed
    trained twice    model calls that stand as trained in two accounts that count
    metrics          steps that stand twice in metrics.jsonl, or not at all
    other updates    steps that were trained again and gave other weights than the first time
    ledger           sums of the accounts that are not those of summary.json

    python benchmarks/resume.py --kills 20 --algorithm grpo --options '{"steps": 4}'

With several algorithms the kills are shared. Exit code 1 when anything was lost, differs or stands
twice.
"""

import argparse
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from resume_processes import Life, log_of, wait_until_gone
from resume_scenes import SCENES, Scene

KILLS_OF_A_RUN = 4
LIVES = 20


def disturb(
    scene: Scene, out: Path, options: dict[str, Any], seconds: float, chance: random.Random
) -> Counter[str]:
    """Run it to its end, killed on the way; how often who was."""
    kills: Counter[str] = Counter()
    pairs = [" ".join(pair) for pair in itertools.combinations(scene.victims, 2)]
    for _ in range(LIVES):
        life = Life(scene, out, options)
        try:
            if kills.total() < KILLS_OF_A_RUN:
                life.process.wait(chance.uniform(0.0, seconds))
            else:
                life.process.wait()
        except subprocess.TimeoutExpired:
            kills.update(life.kill(chance.choice([*scene.victims, *pairs]), chance))
        if life.process.wait() == 0:
            return kills
        wait_until_gone(out)
    raise RuntimeError(f"{out} did not come to its end in {LIVES} lives; see {log_of(out)}")


def campaign(name: str, given: argparse.Namespace, home: Path) -> tuple[Counter[str], Counter[str]]:
    """Kills by victim, and how much is wrong, of the runs of one algorithm."""
    scene, chance = SCENES[name], random.Random(f"{given.seed}/{name}")
    options = {"algorithm": name, "runners": given.runners, "deterministic": True}
    options |= {**scene.options, **given.options}
    begun = time.monotonic()
    if Life(scene, home / "undisturbed", options).process.wait() != 0:
        sys.exit(log_of(home / "undisturbed").read_text())
    seconds = time.monotonic() - begun
    expected = scene.result(home / "undisturbed")
    print(f"{name}: undisturbed {seconds:.0f} s", flush=True)
    kills, wrong = Counter[str](), Counter[str]()
    for number in itertools.count(1):
        if kills.total() >= given.kills / len(given.algorithm):
            break
        out = home / f"run-{number}"
        of_this = disturb(scene, out, options, seconds, chance)
        found = scene.count(out)
        for what, value in scene.result(out).items():
            found[f"other {what}"] += value != expected[what]
        kills, wrong = kills + of_this, wrong + found
        print(
            f"{name} {number}: killed {dict(of_this)}; wrong {dict(+found) or 'nothing'}; "
            f"{kills.total()} kills so far, wrong {dict(+wrong) or 'nothing'}",
            flush=True,
        )
    return kills, wrong


def main() -> None:
    """Kill and count."""
    parser = argparse.ArgumentParser(description="kill a run, go on with it, count what was lost")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--algorithm", choices=sorted(SCENES), nargs="+", default=["grpo"])
    parser.add_argument("--runners", type=int, default=2)
    parser.add_argument("--options", type=json.loads, default={})
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="agl-resume-"))
    of_all = Counter[str]()
    for name in given.algorithm:
        (home / name).mkdir()
        kills, wrong = campaign(name, given, home / name)
        print(f"{name}: {kills.total()} kills: {dict(kills)}")
        for what, count in sorted(wrong.items()):
            print(f"    {what:16} {count}")
        of_all += wrong
    print(f"folders: {home}")
    sys.exit(bool(+of_all))


if __name__ == "__main__":
    main()
