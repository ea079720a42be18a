"""What a tracker that fails or hangs costs, and what is said of it."""

import asyncio
import logging
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import agl
from agl_trackers import tracker
from agl_trackers.delivery import TRIES, Delivery

from .runs import Hang, Learner, Recorder


def refuse() -> None:
    raise ConnectionError("500")


async def test_the_end_of_one_that_always_fails_is_one_short_line(caplog):
    recorder, algorithm = Recorder(rollouts=0), Learner()
    await recorder.on_run_start(algorithm, agl.InMemoryLightningStore())
    recorder.does = lambda what: what == "begin" or refuse()
    for step in range(900):
        recorder.on_step_end(algorithm, step, {})
        recorder.on_evaluation_end(step, {})
    await recorder.on_run_end(algorithm, None)
    assert "1801 of 1802 records are lost" in caplog.messages[-1]
    assert len(caplog.messages[-1]) < 500


async def test_reasons_beyond_a_few_are_counted_together(caplog):
    delivery = Delivery("fails")
    for number in range(20):
        delivery.drop(f"reason {number}", 20 - number)
    await delivery.close(60)
    assert "20 as reason 0; 19 as reason 1" in caplog.messages[-1]
    assert "105 for 14 other reasons" in caplog.messages[-1]


async def test_one_that_fails_again_and_again_is_tried_less_and_less_and_ended():
    tried: list[int] = []
    delivery = Delivery("fails")
    delivery.put("the start", int)

    def fail() -> None:
        tried.append(1)
        refuse()

    for _ in range(500):
        delivery.put("metrics", fail)
    await delivery.idle()
    # A second's rest is long beside 500 calls; on a machine that is very busy it may end within.
    assert TRIES <= len(tried) < 50
    last = threading.Event()
    await delivery.close(60, last.set)
    assert last.is_set()
    assert delivery.lost.total() == 500


async def test_what_is_no_exception_is_counted_and_the_next_call_is_made(caplog):
    class PanicException(BaseException):
        """As pyo3 has it."""

    def panic() -> None:
        raise PanicException("in Rust")

    delivery, made = Delivery("rusty"), threading.Event()
    delivery.put("the start", int)
    delivery.put("metrics", panic)
    delivery.put("metrics", made.set)
    await delivery.close(60)
    assert made.is_set()
    assert delivery.lost == {"metrics raised PanicException": 1}
    assert "in Rust. The run goes on" in caplog.messages[0]


async def test_an_import_that_takes_too_long_is_called_so(monkeypatch, caplog):
    importing = Hang()
    monkeypatch.setattr(Recorder, "package", "slow_library")
    monkeypatch.setattr(tracker, "find_spec", lambda name: True)
    monkeypatch.setattr(tracker, "importlib", SimpleNamespace(import_module=importing))
    recorder, algorithm = Recorder(wait_seconds=0.05), Learner()
    await recorder.on_run_start(algorithm, agl.InMemoryLightningStore())
    await asyncio.to_thread(importing.began.wait)
    await recorder.on_run_end(algorithm, None)
    importing.goes_on.set()
    assert "1 as the import of 'slow_library' had not returned after" in caplog.messages[-1]
    assert caplog.messages[-1].endswith("A larger wait_seconds waits longer")


async def test_each_step_has_its_table_or_is_counted_as_lost(store):
    recorder, algorithm = Recorder(wait_seconds=120), Learner()
    await recorder.on_run_start(algorithm, store)
    for step in range(1, 13):
        for number in range(64):
            await store.enqueue_rollout(number, metadata={"step": step})
        for one in await store.dequeue_many_rollouts(limit=64):
            ids = one.rollout_id, one.attempt.attempt_id
            await store.update_attempt(*ids, status="succeeded")
        recorder.on_step_end(algorithm, step, {})
        await asyncio.sleep(0.05)
    delivery = recorder._delivery
    assert delivery is not None
    await recorder.on_run_end(algorithm, None)
    tables = [step for step, samples in recorder.all("rollouts") if len(samples) == 8]
    assert tables[0] == 1
    assert len(tables) + delivery.lost.total() == 12


async def save(recorder: Recorder, folder: Path, number: int) -> None:
    """Checkpoints that are removed right after they were told of."""
    algorithm, goes_on = Learner(), threading.Event()
    recorder.does = lambda what: goes_on.wait()
    await recorder.on_run_start(algorithm, agl.InMemoryLightningStore())
    for step in range(1, number + 1):
        path = folder / f"step-{step}"
        (path / "parts").mkdir(parents=True)
        (path / "parts" / "weights").write_text(f"of step {step}")
        recorder.on_checkpoint_saved(step, path)
        (path / "parts" / "weights").unlink()
        (path / "parts").rmdir()
        path.rmdir()
    goes_on.set()
    await recorder.on_run_end(algorithm, None)


async def test_a_checkpoint_that_is_removed_before_its_upload_is_uploaded(tmp_path, caplog):
    read: dict[str, str] = {}

    class Uploads(Recorder):
        def log_checkpoint(self, step: int, path: str, folder: Path | None) -> None:
            if folder is not None:
                read[folder.name] = (folder / "parts" / "weights").read_text()

    with caplog.at_level(logging.WARNING, "agl.trackers"):
        await save(Uploads(wait_seconds=120), tmp_path, 6)
    assert read == {f"step-{step}": f"of step {step}" for step in (1, 2, 3, 4)}
    assert "2 as earlier checkpoints were not yet uploaded" in caplog.messages[-1]
    assert os.listdir(tmp_path) == []


async def test_one_that_cannot_be_uploaded_leaves_nothing_behind(tmp_path):
    class Refuses(Recorder):
        def log_checkpoint(self, step: int, path: str, folder: Path | None) -> None:
            refuse()

    await save(Refuses(wait_seconds=120), tmp_path, 3)
    assert os.listdir(tmp_path) == []
