"""What the scripts share: the settings of ``sft``, for a GPU and for the tiny model."""

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

from math_agent import MathProblem, load_problems

FOLDER = Path(__file__).parent
TINY_SERVER = FOLDER / "tiny_server.py"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of ``sft_algorithm.py`` and ``sft_allinone.py``."""
    parser.add_argument("--model", default="models/version_0", help="a folder or a name")
    parser.add_argument("--data", type=Path, help="JSON lines with input and target")
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder of the run; continued if it is one")
    parser.add_argument("--engine", default="auto", help="unsloth, trl or auto")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, on a CPU")


@contextlib.contextmanager
def sft(options: argparse.Namespace) -> Generator[tuple[dict[str, Any], list[MathProblem]]]:
    """The algorithm's configuration and its tasks; what it needs runs inside the block."""
    common: dict[str, Any] = {"type": "sft", "iterations": options.iterations}
    if options.out is not None:
        common["run_dir"] = str(options.out)
    if not options.tiny:
        settings = {
            **common,
            "model": options.model,
            "engine": options.engine,
            "load_in_4bit": True,
            "lora": {"rank": 32},
            "learning_rate": 2e-4,
            "keep_fraction": 0.5,
            "rollouts_per_task": 4,
            # The agent calls tools, and vLLM has to find the calls in what the model writes.
            "server": {"arguments": ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]},
        }
        yield settings, load_problems(options.data)
        return
    from tiny_model import conversation, tiny_problems

    from agl_testing.tiny_model import tiny_model

    model = tiny_model((options.out or Path("agl-runs")) / "tiny-model", conversation)
    with tiny_server(model) as url:
        settings = {
            **common,
            "model": str(model),
            "engine": "trl",
            "server": {
                "type": url,
                "reload_command": [sys.executable, str(TINY_SERVER), "load", url, "{model}"],
            },
            "lora": None,
            "learning_rate": 1e-3,
            "epochs": 8,
            "batch_size": 8,
            "gradient_accumulation": 1,
            "keep_fraction": 1.0,
            "min_reward": 1.0,
            # With half as many, too few are right at first, and chance decides what is learned.
            "rollouts_per_task": 8,
            "max_tokens": 16,
            "evaluation": {"temperature": 1.0, "copies": 2},
            "torch_threads": 1,
        }
        yield settings, tiny_problems()


@contextlib.contextmanager
def tiny_server(model: Path) -> Generator[str]:
    """``tiny_server.py`` as a process of its own; gives its address."""
    command = [sys.executable, str(TINY_SERVER), "serve", str(model)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise RuntimeError(f"{' '.join(command)} ended with exit code {process.wait()}")
        yield url
    finally:
        process.terminate()
        process.wait(timeout=30)
