"""The processes of a run that ``resume.py`` starts, finds and kills."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from resume_scenes import Scene


class Life:
    """One start of a run, until it ends or is killed.

    Args:
        scene: Of the run.
        out: Its folder.
        options: For the scene's script.
    """

    def __init__(self, scene: Scene, out: Path, options: dict[str, Any]) -> None:
        self.out = out
        with log_of(out).open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(scene.script), str(out), json.dumps(options)],
                stdout=log,
                stderr=log,
                env={**os.environ, **scene.environment},
            )

    def kill(self, names: str, chance: random.Random) -> list[str]:
        """Kill those of these victims that are there; which they were."""
        algorithm = psutil.Process(self.process.pid)
        found = {"algorithm": [algorithm]}
        found["supervisor"] = algorithm.children()[:1]
        found["runner"] = [child for each in found["supervisor"] for child in each.children()]
        killed: list[str] = []
        for name in names.split():
            if found[name]:
                chance.choice(found[name]).kill()
                killed.append(name)
        return killed


def log_of(out: Path) -> Path:
    """Where the processes of a run write."""
    return out.with_suffix(".log")


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
