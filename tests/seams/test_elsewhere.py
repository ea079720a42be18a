"""An agent that changes the folder of the process, with everything in one process."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests import fork_server

import agl
from agl_unsloth.sft import SFT

SCRIPT = Path(__file__).with_name("grpo_run.py")


@pytest.mark.parametrize("run_dir", ["runs/first", None])
def test_run_stays_where_it_began(tmp_path: Path, run_dir: str | None) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    options = {"run_dir": run_dir, "elsewhere": str(elsewhere), "steps": 1, "checkpoints": 1}
    done = fork_server.run([SCRIPT, tmp_path, json.dumps(options)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    (summary,) = tmp_path.glob("*/*/summary.json")
    assert json.loads(summary.read_text())["run_dir"] == str(summary.parent)
    assert (summary.parent / "metrics.jsonl").exists()
    assert list((summary.parent / "checkpoints").iterdir())
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize(
    ("make", "options"),
    [(agl.GRPO, {"model": "tiny"}), (SFT, {"model": "tiny"}), (agl.VERL, {"config": {}})],
)
def test_folders_of_algorithms_are_taken_from_where_they_are_made(
    make: Any, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert make(**options, run_dir="run").run_dir == str(tmp_path / "run")
    assert make(**options).run_dir is None
