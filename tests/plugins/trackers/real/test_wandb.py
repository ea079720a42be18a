"""W&B's own records read what a run wrote; nobody logs in and nothing leaves this machine."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agl_trackers
from agl.errors import AlgorithmError
from agl_learning.run import checkpoint

from ..runs import SECRET, Fails, fit  # noqa: TID252

pytest.importorskip("wandb")

BLOCK = 32_768
"""Bytes of a block of LevelDB's log, in which W&B keeps its records."""


@pytest.fixture(autouse=True)
def nobody_has_logged_in(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


def records(folder: Path) -> Iterator[Any]:
    """What the one run in a folder told W&B."""
    from wandb.proto.wandb_internal_pb2 import Record

    [file] = folder.glob("wandb/offline-run-*/*.wandb")
    data, at, whole = file.read_bytes(), 7, b""  # behind the header of the file
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def read(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def table(folder: Path, path: str) -> list[dict[str, Any]]:
    [file] = folder.glob(f"wandb/offline-run-*/files/{path}")
    found = json.loads(file.read_text())
    return [dict(zip(found["columns"], row, strict=True)) for row in found["data"]]


def test_an_offline_run_has_configuration_metrics_tables_prompts_and_checkpoints(tmp_path, caplog):
    caplog.set_level("INFO", "agl.trackers")
    fit(agl_trackers.WandB(project="rooms", tags=["first"]), tmp_path, run="first")
    found = list(records(tmp_path))
    run = next(one.run for one in found if one.HasField("run"))
    assert (run.project, run.run_id, run.job_type, list(run.tags)) == (
        *("rooms", "first", "learner"), ["first"],
    )  # fmt: skip
    config = read(run.config.update)
    assert config["algorithm"]["steps"] == 3
    assert config["algorithm"]["api_key"] == "***"
    assert SECRET not in json.dumps(config)

    history = [read(one.history.item) for one in found if one.HasField("history")]
    scalars = [
        {key: value for key, value in line.items() if not key.startswith("_")}
        for line in history
        if not {"rollouts", "prompts"} & {key.partition("/")[0] for key in line}
    ]
    assert scalars == [
        line
        for step in (1, 2, 3)
        for line in (
            {"step": step, "reward/mean": step / 4},
            {"step": step, "val/reward/mean": step / 2},
        )
    ]
    axes = [one.metric for one in found if one.HasField("metric")]
    assert {(axis.glob_name, axis.step_metric) for axis in axes} >= {("*", "step")}

    tables = {line["step"]: line["rollouts/path"] for line in history if "rollouts/path" in line}
    rows = table(tmp_path, tables[2])
    assert [row["reward"] for row in rows] == [0.75, None]
    assert rows[0]["conversation"] == "user: Be kind. Is it?\n\nassistant: yes"
    assert rows[1]["error"] == "agent: no kindness"

    artefacts = [one.request.log_artifact.artifact for one in found if one.HasField("request")]
    artefacts += [one.artifact for one in found if one.HasField("artifact")]
    made = [one for one in artefacts if one.name]
    prompts = [one for one in made if one.type == "prompt"]
    assert [(one.name, set(one.aliases)) for one in prompts] == [
        ("first-prompt-prompt", {"latest", f"step-{step - 1}", f"prompt-{step}"})
        for step in (1, 2, 3)
    ]
    [texts] = [line["prompts/path"] for line in history if line.get("prompts/nrows") == 3]
    assert table(tmp_path, texts)[0]["text"] == "Say yes. {question}"
    saved = [one for one in made if one.type == "model"]
    assert [set(one.aliases) for one in saved] == [{"latest", f"step-{n}"} for n in (1, 2, 3)]
    sizes = {file.path: file.size for file in saved[-1].manifest.contents}
    assert sizes.keys() == {"weights.txt", checkpoint.MANIFEST}
    assert sizes["weights.txt"] == len("weights of step 3")
    assert "nobody has logged in" in caplog.text
    assert "wandb sync" in caplog.text


def test_a_failed_run_is_a_failed_run_in_wandb(tmp_path):
    tracker = agl_trackers.WandB(mode="offline")
    with pytest.raises(AlgorithmError):
        fit(tracker, tmp_path, Fails())
    found = list(records(tmp_path))
    assert [one.exit.exit_code for one in found if one.HasField("exit")] == [1]
    summary = [read(one.summary.update) for one in found if one.HasField("summary")]
    assert {"error": "ValueError: no luck"} in summary
