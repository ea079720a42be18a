"""TensorBoard's own reader reads what a run wrote."""

import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import agl_trackers
from agl_trackers.records import RunAbout

from ..runs import SECRET, Learner, fit  # noqa: TID252

pytest.importorskip("tensorboardX")
accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def read(folder: Path) -> Any:
    found = accumulators.EventAccumulator(str(folder), size_guidance={"tensors": 0})
    found.Reload()
    return found


def text(events: Any, tag: str) -> list[tuple[int, str]]:
    found = events.Tensors(f"{tag}/text_summary")
    return [(one.step, one.tensor_proto.string_val[0].decode()) for one in found]


def test_event_files_have_scalars_rollouts_prompts_and_configuration(tmp_path):
    fit(agl_trackers.TensorBoard(), tmp_path)
    events = read(tmp_path / "tensorboard")
    tags = events.Tags()["scalars"]
    scalars = {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in tags}
    assert scalars == {
        "reward/mean": [(1, 0.25), (2, 0.5), (3, 0.75)],
        "val/reward/mean": [(1, 0.5), (2, 1.0), (3, 1.5)],
    }
    [(_, config)] = text(events, "config")
    assert '"steps": 3' in config
    assert SECRET not in config
    assert [step for step, _ in text(events, "rollouts")] == [1, 2, 3]
    assert "| succeeded | 0.75 |" in text(events, "rollouts")[0][1]
    assert "no kindness" in text(events, "rollouts")[1][1]
    assert "Say yes. {question}" in text(events, "prompts/prompt")[0][1]
    assert text(events, "checkpoint")[-1][1].endswith("step-000003`")


def test_a_run_that_goes_on_replaces_the_steps_that_come_again(tmp_path, monkeypatch):
    # Within one second, by which tensorboardX names its files.
    start = time.time()
    clock = itertools.count()
    still = SimpleNamespace(time=lambda: int(start) + next(clock) / 1e6)
    monkeypatch.setattr("tensorboardX.event_file_writer.time", still)
    fit(agl_trackers.TensorBoard(), tmp_path, run="first")
    again = Learner(steps=4, first=3)
    fit(agl_trackers.TensorBoard(), tmp_path, again, run="first", resume=True, force=True)
    events = read(tmp_path / "tensorboard")
    assert [e.step for e in events.Scalars("reward/mean")] == [1, 2, 3, 4]


def test_two_of_one_run_keep_what_each_wrote(tmp_path, monkeypatch):
    start = time.time()
    monkeypatch.setattr(
        "tensorboardX.event_file_writer.time", SimpleNamespace(time=lambda: int(start))
    )
    about = RunAbout(run_id="mine", algorithm="toy", folder=tmp_path, config={}, generation=1)
    trackers = [agl_trackers.TensorBoard(), agl_trackers.TensorBoard()]
    for number, tracker in enumerate(trackers):
        tracker.begin(about)
        tracker.log_metrics(1, {f"of/{number}": 0.5})
    for tracker in trackers:
        tracker.end(None)
    assert {"of/0", "of/1"} <= {*read(tmp_path / "tensorboard").Tags()["scalars"]}
