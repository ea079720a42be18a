"""Kill a seeded run at random moments, go on with it each time, and count what was lost.

A run of an algorithm (``resume_scenes.py``) is made once without disturbance. Then runs with the
same seed are killed with SIGKILL and started again with the same command until they end:

- the algorithm, which serves the store and the gateway; a runner; the supervisor of the runners;
  what the algorithm has started (a training, a model's server)
- in every second run, the server of the store and a second gateway, processes of their own that are
  started again at once, at the same port
- any two of these at once, at a random moment of the time that the undisturbed run took, or in the
  first seconds of a start; the next start comes at once, or when nothing is left of the one before
- beside them, a second process with the same command: it is refused, or goes on where the first one
  dies

Of each run:

    other <result>   what it came to (weights, rewards, a prompt) is not what the undisturbed run
                     came to, bit for bit
    lost             rollouts that a step has collected and that did not succeed
    stale            attempts at rollouts of a dead start by runners of a later one
    repeated         rollouts that were run again although they had succeeded
    trained twice    model calls that stand as trained in two accounts that count
    metrics          steps that stand twice in metrics.jsonl, or not at all
    other updates    steps that were trained again and gave other weights than the first time, by
                     the warnings of the loop
    ledger           sums of the accounts that are not those of summary.json
    two at once      second processes that were not refused while the first one lived

    python benchmarks/resume.py --kills 20 --algorithm grpo --options '{"steps": 4}'

With several algorithms the kills are shared. Exit code 1 when anything was lost, differs or stands
twice.
"""

import argparse
import contextlib
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resume_processes import Life, Service, count_starts, log_of, services, wait_until_gone
from resume_remote import REMOTE_SCENES
from resume_scenes import SCENES as LOCAL_SCENES, SERVICES, Scene

SCENES = {**LOCAL_SCENES, **REMOTE_SCENES}
KILLS_OF_A_RUN = 6
LIVES = 30
SOON_SECONDS = 3.0
"""After a start has begun."""
REFUSED = ("in use by", "is running: process")
"""What a second process says, one of them."""


@dataclass
class Disturbance:
    """One run, killed on its way.

    Args:
        scene: Of the run.
        out: Its folder.
        options: For the scene's script.
        seconds: That the undisturbed run took.
        chance: Decides who dies, and when.
        victims: Who may die; empty for all that there are.
    """

    scene: Scene
    out: Path
    options: dict[str, Any]
    seconds: float
    chance: random.Random
    victims: Sequence[str] = ()
    services: Sequence[Service] = ()
    kills: Counter[str] = field(default_factory=Counter[str])
    lives: int = 0
    two_at_once: int = 0
    refused: int = 0

    def run(self, *, apart: bool) -> None:
        """Come to the end.

        Args:
            apart: With a store server and a second gateway of their own.
        """
        with services(self.out) if apart else contextlib.nullcontext([]) as self.services:
            victims = (*self.scene.victims, *(SERVICES if apart else ()))
            self.victims = [name for name in victims if name in (self.victims or victims)]
            for service, option in zip(self.services, ("store", "judge"), strict=False):
                self.options = {**self.options, option: service.url}
            life = self.start()
            while (rest := self.disturb(life)) is not None:
                life = rest

    def start(self, log: Path | None = None) -> Life:
        """Start it, or go on with it.

        Raises:
            RuntimeError: It was started too often.
        """
        self.lives += 1
        if self.lives > LIVES:
            raise RuntimeError(f"{self.out} does not come to its end; see {log_of(self.out)}")
        return Life(self.scene, self.out, self.options, self.services, log)

    def disturb(self, life: Life) -> Life | None:
        """Kill in a life until it has ended; the one that goes on, or None at the end."""
        while self.kills.total() < KILLS_OF_A_RUN and self.wait(life):
            if self.chance.random() < 0.15:
                if (other := self.second(life)) is not None:
                    return other
                continue
            number = min(self.chance.choice((1, 1, 2)), len(self.victims))
            self.kills.update(life.kill(self.chance.sample(self.victims, number), self.chance))
            if life.process.poll() is None:
                # An algorithm that has lost its runners for good ends soon.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    life.process.wait(0.1)
        if life.process.wait() == 0:
            return None
        if self.chance.random() < 0.5:
            wait_until_gone(self.out)
        return self.start()

    def wait(self, life: Life) -> bool:
        """Wait for the next moment; whether the life lasts."""
        until = time.monotonic() + self.chance.uniform(0.0, self.seconds)
        if self.chance.random() < 0.5:
            begun = count_starts(self.out)
            while life.process.poll() is None and time.monotonic() < until:
                if count_starts(self.out) > begun:
                    until = time.monotonic() + self.chance.uniform(0.0, SOON_SECONDS)
                    break
                time.sleep(0.05)
        with contextlib.suppress(subprocess.TimeoutExpired):
            life.process.wait(max(0.0, until - time.monotonic()))
        return life.process.poll() is None

    def second(self, life: Life) -> Life | None:
        """Start the same once more beside a life; where that one died, what goes on instead."""
        log = log_of(self.out).with_suffix(f".second-{self.lives}.log")
        other = self.start(log)
        if self.chance.random() < 0.5:
            with contextlib.suppress(subprocess.TimeoutExpired):
                other.process.wait(self.chance.uniform(0.0, 2 * SOON_SECONDS))
            self.kills.update(life.kill(["algorithm"], self.chance))
            life.process.wait()
            return other
        while other.process.poll() is None and life.process.poll() is None:
            time.sleep(0.05)
        if other.process.poll() is None:
            return other  # the first one came to its end meanwhile
        said = log.read_text()
        is_refused = other.process.returncode != 0 and any(why in said for why in REFUSED)
        if not is_refused:
            code, last = other.process.returncode, said.strip().rpartition("\n")[-1]
            print(f"{self.out.name}: a second process ended with {code}: {last}")
        self.two_at_once += not is_refused
        self.refused += is_refused
        return None


def campaign(name: str, given: argparse.Namespace, home: Path) -> tuple[Counter[str], Counter[str]]:
    """Kills by victim, and how much is wrong, of the runs of one algorithm."""
    scene, chance = SCENES[name], random.Random(f"{given.seed}/{name}")
    options = {"algorithm": name, "runners": given.runners, "deterministic": True}
    options |= {**scene.options, **given.options}
    whole, begun = home / "undisturbed", time.monotonic()
    with scene.outside(whole) as outside:
        if Life(scene, whole, options | outside).process.wait() != 0:
            sys.exit(log_of(whole).read_text())
    seconds = time.monotonic() - begun
    expected = scene.result(whole)
    print(f"{name}: undisturbed {seconds:.0f} s", flush=True)
    kills, wrong = Counter[str](), Counter[str]()
    for number in itertools.count(1):
        if kills.total() >= given.kills / len(given.algorithm):
            break
        out = home / f"run-{number}"
        with scene.outside(out) as outside:
            one = Disturbance(scene, out, options | outside, seconds, chance, given.victims)
            one.run(apart=scene.takes_services and number % 2 == 0)
        found = scene.count(one.out)
        found["two at once"] += one.two_at_once
        for what, value in scene.result(one.out).items():
            found[f"other {what}"] += value != expected[what]
        kills, wrong = kills + one.kills, wrong + found
        print(
            f"{name} {number}: {one.lives} starts, {one.refused} of them refused, killed "
            f"{dict(one.kills)}; wrong "
            f"{dict(+found) or 'nothing'}; {kills.total()} kills so far, wrong "
            f"{dict(+wrong) or 'nothing'}",
            flush=True,
        )
    return kills, wrong


def main() -> None:
    """Kill and count."""
    parser = argparse.ArgumentParser(description="kill a run, go on with it, count what was lost")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--algorithm", choices=sorted(SCENES), nargs="+", default=["grpo"])
    parser.add_argument("--victims", nargs="+", default=(), help="only these")
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
