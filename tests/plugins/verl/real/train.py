"""Train the agent of ``digits.py`` with the real verl on a CPU; what the tests start.

    python train.py '{"out": "DIR", "steps": 3, ...}'

See ``Options`` for what can be given.
"""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ascii_model import make_tiny_model
from digits import digits
from verl_cpu import cpu_config, use_cpu

import agl


@dataclass
class Options:
    """Of one run."""

    out: str
    steps: int = 3
    algorithm: str = "grpo"
    port: int = 0
    """Of the store."""
    keeps: bool = False
    """Whether the store is a file in the folder, which a start after a kill finds."""
    validate: bool = False
    crash: float = 0.0
    seconds: float = 0.0
    """How long a rollout takes at least, at random up to twice as long."""
    level: str = "trajectory"
    """``transition`` makes a row of each call."""
    cpu: dict[str, Any] = field(default_factory=dict)
    """Arguments of ``cpu_config``, sections of verl's configuration among them."""
    verl: dict[str, Any] = field(default_factory=dict)
    """Arguments of ``VERL``."""


def train(options: Options) -> None:
    """To the end; the results are in the folder."""
    use_cpu()
    out = Path(options.out)
    model = out / "model"
    if not model.exists():
        make_tiny_model(model)
    sections = dict(options.cpu)
    trainer = {"total_training_steps": options.steps, "total_epochs": 1000}
    sections["trainer"] = trainer | sections.get("trainer", {})
    config = cpu_config(model, **sections)
    del config["algorithm"]["adv_estimator"]  # VERL(algorithm=...) says it
    config["agl"] = {"trace_aggregator": {"level": options.level}}
    each = {"crash": options.crash, "seconds": options.seconds}
    tasks = [{"number": i, **each} for i in range(64)]
    agl.Trainer(
        store=agl.SqliteLightningStore(out / "store.db") if options.keeps else None,
        algorithm=agl.VERL(
            config, algorithm=options.algorithm, run_dir=options.out, **options.verl
        ),
        strategy={"type": "cs", "server_port": options.port},
        n_runners=1,
    ).fit(digits, tasks, val_dataset=tasks[:4] if options.validate else None)


if __name__ == "__main__":
    train(Options(**json.loads(sys.argv[1])))
