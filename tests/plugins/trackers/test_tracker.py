"""What every tracker is told, and that none can stop or slow a run."""

import asyncio
import logging
import re
import threading
import time
from typing import Any

import pytest

import agl
import agl_trackers
from agl.errors import AlgorithmError, BrokenComponentError, ConfigError
from agl.plugins.build import build_component
from agl.utils.secrets import learn
from agl_trackers.delivery import Delivery

from .runs import PROMPTS, SECRET, Fails, Hang, Learner, Recorder, fit


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What a tracker is told of a run, and the folder of that."""
    recorder, folder = Recorder(), tmp_path_factory.mktemp("told") / "run"
    fit(recorder, folder)
    return recorder, folder


def test_a_tracker_is_told_of_configuration_steps_evaluations_prompts_and_checkpoints(told):
    recorder, folder = told
    assert recorder.told[0][0] == "begin"
    assert recorder.told[-1] == ("end", None)
    [(about,)] = recorder.all("begin")
    assert (about.algorithm, about.generation, about.folder) == ("learner", 1, folder)
    assert recorder.all("metrics") == [
        pair
        for step in (1, 2, 3)
        for pair in ((step, {"reward/mean": step / 4}), (step, {"val/reward/mean": step / 2}))
    ]
    prompts = recorder.all("prompt")
    assert [(step, p.version, p.text) for step, p in prompts] == [
        (step - 1, f"prompt-{step}", PROMPTS[step % 3]) for step in (1, 2, 3)
    ]
    saved = folder / "checkpoints" / "step-000003"
    step, path, uploaded = recorder.all("checkpoint")[-1]
    assert (step, path, uploaded.name) == (3, str(saved), saved.name)


def test_configuration_is_told_without_secrets(told):
    [(about,)] = told[0].all("begin")
    assert about.config["algorithm"]["steps"] == 3
    assert about.config["algorithm"]["api_key"] == "***"
    assert SECRET not in repr(about)


def test_rollouts_of_each_step_are_told_with_task_conversation_reward_and_error(told):
    tables = dict(told[0].all("rollouts"))
    assert sorted(tables) == [1, 2, 3]
    first = tables[1][0]
    assert first.reward == 0.75
    assert first.conversation == "user: Say yes. Is it?\n\nassistant: yes"
    assert "Is it?" in first.task
    assert "answer key" not in first.task
    _, failed = tables[2]
    assert (failed.status, failed.reward) == ("failed", None)
    assert failed.error == "agent: no kindness"


def test_a_run_without_steps_tells_its_rollouts_at_the_end(tmp_path):
    recorder = Recorder()
    initial = {"prompt": agl.PromptTemplate(template=PROMPTS[0], engine="f-string")}
    fit(recorder, tmp_path / "run", agl.Baseline(), initial_resources=initial)
    [(step, samples)] = recorder.all("rollouts")
    assert step == 0
    assert [sample.reward for sample in samples] == [0.75, 0.75]


def test_at_most_so_many_rollouts_are_told_and_none_where_nobody_wants_them(tmp_path):
    few, none = Recorder(rollouts=1), Recorder(rollouts=0, checkpoints=False)
    fit([few, none], tmp_path / "run")
    assert {len(samples) for _, samples in few.all("rollouts")} == {1}
    assert none.all("rollouts") == []
    assert {folder for _, _, folder in none.all("checkpoint")} == {None}


def test_the_end_tells_why_a_run_failed(tmp_path):
    recorder = Recorder()
    with pytest.raises(AlgorithmError):
        fit(recorder, tmp_path / "run", Fails())
    assert recorder.told[-1] == ("end", "ValueError: no luck")


def test_a_tracker_that_raises_is_counted_said_once_and_does_not_stop_the_run(tmp_path, caplog):
    def refuse(what: str) -> None:
        if what == "metrics":
            raise ConnectionError("500 Internal Server Error")

    recorder = Recorder(does=refuse)
    with caplog.at_level(logging.WARNING, "agl.trackers"):
        fit(recorder, tmp_path / "run")
    assert len(recorder.all("checkpoint")) == 3
    first, last = [one.getMessage() for one in caplog.records if one.name == "agl.trackers"]
    assert "500 Internal Server Error. The run goes on" in first
    assert "3 as metrics raised ConnectionError; 3 as evaluations raised" in last


def test_a_tracker_that_cannot_be_opened_gets_nothing_more(tmp_path, caplog):
    def refuse(what: str) -> None:
        raise SystemExit("wrong key")

    recorder = Recorder(does=refuse)
    fit(recorder, tmp_path / "run")
    assert recorder.told == []
    assert "as it could not be opened" in caplog.messages[-1]


def test_a_tracker_that_hangs_is_not_waited_for_longer_than_said(tmp_path, caplog):
    with Hang() as hang:
        began = time.monotonic()
        fit(Recorder(does=hang, wait_seconds=0.2), tmp_path / "run")
        assert time.monotonic() - began < 60  # the run does not hang
    assert "the start had not returned after" in caplog.messages[-1]
    assert "as the run had ended" in caplog.messages[-1]


def test_what_finds_the_queue_full_is_dropped_and_counted():
    delivery = Delivery("slow", most=2)
    with Hang() as hang:
        assert delivery.put("the start", hang)
        hang.began.wait()
        taken = [delivery.put("more", int) is not None for _ in range(4)]
        assert taken == [True, True, False, False]


async def test_the_end_finds_room_in_a_full_queue():
    goes_on, made = threading.Event(), list[str]()
    delivery = Delivery("slow", most=1)
    delivery.put("the start", goes_on.wait)
    delivery.put("one", lambda: made.append("one"))
    goes_on.set()
    await delivery.close(30, lambda: made.append("the end"))
    assert made[-1] == "the end"
    assert not delivery.put("late", int)


def test_rollouts_are_not_read_for_a_tracker_that_fails(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("agl_trackers.delivery.FAILS", 0)
    read: list[object] = []
    monkeypatch.setattr("agl_trackers.tracker.sample_of", lambda *given: read.append(given))
    fit(Recorder(), tmp_path / "run")
    assert read == []
    assert "3 as rollouts were not read, as it had failed" in caplog.text


async def test_a_call_that_hangs_already_is_not_waited_for_at_the_end():
    delivery = Delivery("hangs")
    with Hang() as hang:
        delivery.put("the start", hang)
        hang.began.wait()
        await asyncio.sleep(0.15)
        ended = asyncio.create_task(delivery.close(3600, hung=0.1))
        await asyncio.wait_for(ended, 60)
        ((lost, times),) = delivery.lost.items()
        assert re.fullmatch(r"the start had not returned after \d+ s", lost)  # a busy machine's
        assert times == 1


@pytest.mark.parametrize(
    ("name", "kind", "library"),
    [
        ("mlflow", agl_trackers.MLflow, "mlflow"),
        ("otlp", agl_trackers.OTLP, "opentelemetry.exporter.otlp.proto.http"),
        ("tensorboard", agl_trackers.TensorBoard, "tensorboardX"),
        ("trackio", agl_trackers.Trackio, "trackio"),
        ("wandb", agl_trackers.WandB, "wandb"),
    ],
)
def test_a_tracker_without_its_library_is_refused_by_its_extra(name, kind, library, monkeypatch):
    monkeypatch.setattr("agl_trackers.tracker.find_spec", lambda name: None)
    message = rf"{name!r} needs {library!r}.*agl-trackers\[{name}\]"
    with pytest.raises(BrokenComponentError, match=message):
        agl.Trainer(hooks=[{"type": name}])
    monkeypatch.setenv("AGL_CURRENT_ROLE", "runner")  # whose machine needs none
    assert isinstance(agl.Trainer(hooks=[{"type": name}]).hooks[0], kind)


def test_an_address_that_is_none_is_refused(monkeypatch):
    monkeypatch.setattr("agl_trackers.tracker.find_spec", lambda name: True)
    with pytest.raises(ConfigError, match="phoenix: expected an address with http"):
        agl_trackers.OTLP(phoenix="localhost:6006")


def test_options_of_a_tracker_are_checked_by_name(monkeypatch):
    monkeypatch.setattr("agl_trackers.tracker.find_spec", lambda name: True)
    about: dict[str, Any] = {"group": "agl.hooks", "expected_type": object, "where": "hooks"}
    with pytest.raises(ConfigError, match="Did you mean 'log_dir'"):
        build_component({"type": "tensorboard", "logdir": "here"}, **about)
    with pytest.raises(ConfigError, match="rollouts"):
        build_component({"type": "tensorboard", "rollouts": -1}, **about)
    for given in ("tensorboard", {"type": "tensorboard", "log_dir": "here", "rollouts": 3}):
        tracker = build_component(given, **about)
        assert isinstance(tracker, agl_trackers.TensorBoard)
    assert tracker.rollouts == 3


async def test_nothing_is_read_for_a_tracker_that_hangs(monkeypatch, caplog):
    read: list[int] = []

    async def some(store: Any, run_id: str, step: int, most: int, since: float) -> list[Any]:
        read.append(step)
        return []

    monkeypatch.setattr("agl_trackers.tracker.ended_rollouts", some)
    with Hang("metrics") as hang:
        recorder, algorithm = Recorder(does=hang, wait_seconds=0.1), Learner()
        await recorder.on_run_start(algorithm, agl.InMemoryLightningStore())
        recorder.on_step_end(algorithm, 1, {})
        await asyncio.to_thread(hang.began.wait)
        for step in (2, 3):
            recorder.on_step_end(algorithm, step, {})
        await recorder.on_run_end(algorithm, None)
    assert read == []
    assert "3 as rollouts were left to be read" in caplog.messages[-1]
    assert "A larger wait_seconds waits longer" in caplog.messages[-1]


async def test_rollouts_that_are_not_read_at_the_end_are_counted(monkeypatch, caplog):
    never = asyncio.Event()

    async def hang(*_: Any, since: float) -> list[Any]:
        await never.wait()
        return []

    monkeypatch.setattr("agl_trackers.tracker.ended_rollouts", hang)
    recorder, algorithm = Recorder(wait_seconds=0.1), Learner()
    await recorder.on_run_start(algorithm, agl.InMemoryLightningStore())
    for step in (1, 2, 3):
        recorder.on_step_end(algorithm, step, {})
    await recorder.on_run_end(algorithm, None)
    assert "3 as rollouts were left to be read" in caplog.messages[-1]


async def test_prompts_and_errors_are_told_without_secrets(store):
    learn(SECRET)
    recorder, algorithm = Recorder(), Learner()
    await recorder.on_run_start(algorithm, store)
    prompt = agl.PromptTemplate(template=f"Use {SECRET}")
    recorder.on_resources_published(await store.add_resources({"prompt": prompt}))
    await recorder.on_run_end(algorithm, ValueError(f"wrong key {SECRET}"))
    assert "wrong key" in str(recorder.told)
    assert "Use " in str(recorder.told)
    assert SECRET not in str(recorder.told)


async def test_a_rollout_without_a_step_that_ends_while_others_are_read_is_in_the_next():
    class Slow(agl.InMemoryLightningStore):
        async def query_rollouts(self, *given: Any, **about: Any) -> Any:
            found = await super().query_rollouts(*given, **about)
            if not ended:
                ended.append(await self.start_rollout("meanwhile"))
                attempt_id = ended[0].attempt.attempt_id
                await self.update_attempt(ended[0].rollout_id, attempt_id, status="succeeded")
            return found

    recorder, algorithm, ended = Recorder(), Learner(), list[Any]()
    await recorder.on_run_start(algorithm, Slow())
    for step in (1, 2):
        recorder.on_step_end(algorithm, step, {})
    await recorder.on_run_end(algorithm, None)
    assert [step for step, _ in recorder.all("rollouts")] == [2]
