"""A run that is asked to stop ends at a safe point, a second time at once, and goes on later."""

import json
import re
import signal
import time
from pathlib import Path

import pytest
from tests import fork_server
from tests.stores import opened

import agl
from agl.execution.signals import ONE_SIGNAL_SECONDS

pytest.importorskip("torch")

SCRIPT = Path(__file__).with_name("grpo_run.py")
CALLS_PER_STEP = 4
OPTIONS = {"steps": 3, "checkpoints": 3}
AT = CALLS_PER_STEP + 3
"""The second call of step 2: the evaluation before the first step has one call."""
BOTH = [signal.SIGINT, signal.SIGTERM]


def start(folder: Path, **options: object) -> fork_server.Process:
    command = [SCRIPT, folder, json.dumps({**OPTIONS, **options})]
    with (folder / "errors.txt").open("w") as errors:
        return fork_server.start(command, stdout=errors, stderr=errors)


def wait_for(path: Path, text: str = "") -> None:
    until = time.monotonic() + 200
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < until, f"no {text!r} in {path.name}"
        time.sleep(0.05)


def go_on(folder: Path) -> None:
    """Continue the run, and check that it is whole."""
    process = start(folder, resume_from=str(folder / "run"))
    assert process.wait(timeout=250) == 0, (folder / "errors.txt").read_text()[-3000:]
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "reward/mean" in line] == [1, 2, 3]


async def rollouts_of(folder: Path) -> list[agl.Rollout]:
    async with opened(folder / "store.db") as store:
        return list(await store.query_rollouts())


@pytest.mark.parametrize("numbers", [BOTH[:1], BOTH[1:], BOTH], ids=["ctrl-c", "sigterm", "both"])
async def test_asked_once_it_ends_what_is_under_way_and_no_more(tmp_path, numbers) -> None:
    process = start(tmp_path, wait_at=AT)
    wait_for(tmp_path / "waiting")
    for number in numbers:  # two at once count as one
        process.send_signal(number)
    # The log speaks on the algorithm's loop; the agent that is under way goes on after it.
    wait_for(tmp_path / "errors.txt", "asked to stop")
    (tmp_path / "go").touch()
    assert process.wait(timeout=250) == 1
    errors = (tmp_path / "errors.txt").read_text()
    assert "\nthe run has stopped before its end, as it was asked to, after" in errors
    assert "Traceback" not in errors  # it ends as a script that is interrupted does
    assert "resume=True" in errors
    assert (tmp_path / "run/checkpoints/step-000001").is_dir()
    ended = [rollout.status for rollout in await rollouts_of(tmp_path)]
    assert sorted(ended) == ["cancelled"] * 2 + ["succeeded"] * (CALLS_PER_STEP + 3)
    claimed = len((tmp_path / "endpoints.txt").read_text().splitlines())
    go_on(tmp_path)
    # Nothing that had ended was run again: two of step 2, step 3 and the last evaluation.
    done = len((tmp_path / "endpoints.txt").read_text().splitlines()) - claimed
    assert done == 2 + CALLS_PER_STEP + 1


def test_asked_twice_it_ends_at_once_and_goes_on_all_the_same(tmp_path: Path) -> None:
    process = start(tmp_path, wait_at=AT)
    wait_for(tmp_path / "waiting")
    process.send_signal(signal.SIGINT)
    wait_for(tmp_path / "errors.txt", "asked to stop")
    time.sleep(ONE_SIGNAL_SECONDS)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=250) != 0  # although the agent waits for what never comes
    assert not (tmp_path / "go").exists()
    assert not any((tmp_path / "run").glob("checkpoints/step-*"))
    go_on(tmp_path)


@pytest.mark.parametrize(
    ("first", "then", "code"),
    [(signal.SIGINT, signal.SIGTERM, 143), (signal.SIGTERM, signal.SIGINT, -signal.SIGINT)],
    ids=["ctrl-c, sigterm", "sigterm, ctrl-c"],
)
def test_whichever_signal_comes_second_ends_a_run_in_processes_at_once(scene, first, then, code):
    process = scene.start(
        """
        class Endless(agl.Algorithm):
            def ask_to_stop(self):
                print("ASKED", flush=True)
                return True  # and it never follows

            async def run(self, train_dataset=None, val_dataset=None):
                (HERE / "running").touch()
                await asyncio.Event().wait()

        trainer(Endless()).fit(agl.rollout(lambda task: 1.0))
        """
    )
    wait_for(scene.folder / "running")
    process.send_signal(first)
    wait_for(scene.output, "ASKED")
    time.sleep(ONE_SIGNAL_SECONDS)
    process.send_signal(then)
    assert process.wait(timeout=60) == code, scene.errors.read_text()[-3000:]
    assert scene.output.read_text() == "ASKED\n"
    if then is signal.SIGINT:  # an exception of Python's, which says the way on
        assert "\nThe run was interrupted: go on with Trainer(run=" in scene.errors.read_text()


@pytest.mark.parametrize("strategy", ["type='cs'", "type='shm', graceful_delay=2.0"])
def test_what_fails_while_a_run_is_stopped_at_once_was_cancelled(scene, strategy) -> None:
    process = scene.start(
        f"""
        class Served(agl.Algorithm):
            async def run(self, train_dataset=None, val_dataset=None):
                await self.get_store().enqueue_rollout("a task")
                try:
                    await asyncio.Event().wait()
                finally:
                    (HERE / "the model is gone").touch()
                    await asyncio.to_thread(wait_for, "the agent has seen it")

        @agl.rollout
        def agent(task):
            (HERE / "running").touch()
            wait_for("the model is gone")
            (HERE / "the agent has seen it").touch()
            raise OSError("no model")

        options = dict({strategy})
        if options["type"] == "cs":
            options["server_port"] = 0
        agl.setup_logging()
        store = agl.SqliteLightningStore(HERE / "store.db")
        agl.Trainer(algorithm=Served(), strategy=options, store=store).fit(agent)
        """
    )
    wait_for(scene.folder / "running")
    process.send_signal(signal.SIGINT)  # the algorithm cannot stop in order
    assert process.wait(timeout=100) != 0
    said = scene.errors.read_text()
    assert "was cancelled by the stop of its run; it ended with OSError: no model" in said
    assert re.search("^rollouts +1 cancelled$", said, re.M)
    assert not re.search("^failed", said, re.M)


@pytest.mark.parametrize("number", BOTH, ids=["ctrl-c", "sigterm"])
def test_algorithm_beside_the_runner_is_asked_first_and_says_that_it_has_stopped(scene, number):
    process = scene.start(
        """
        class Asked(agl.Algorithm):
            def ask_to_stop(self):
                self.loop.call_soon_threadsafe(self.asked.set)
                return True

            async def run(self, train_dataset=None, val_dataset=None):
                self.loop, self.asked = asyncio.get_running_loop(), asyncio.Event()
                (HERE / "running").touch()
                await self.asked.wait()
                raise agl.errors.StoppedError("as it was asked to")

        trainer(Asked(), main_process="runner").fit(agl.rollout(lambda task: 1.0))
        """
    )
    wait_for(scene.folder / "running")
    process.send_signal(number)
    assert process.wait(timeout=60) == 1
    errors = scene.errors.read_text()
    assert "\nthe run has stopped before its end, as it was asked to; " in errors
    assert scene.left() == []


def test_algorithm_beside_the_runner_that_cannot_stop_is_ended_by_the_first_ctrl_c(scene) -> None:
    process = scene.start(
        """
        class Endless(agl.Algorithm):
            async def run(self, train_dataset=None, val_dataset=None):
                (HERE / "running").touch()
                await asyncio.Event().wait()

        trainer(Endless(), main_process="runner").fit(agl.rollout(lambda task: 1.0))
        """
    )
    wait_for(scene.folder / "running")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == -signal.SIGINT
    assert "KeyboardInterrupt" in scene.errors.read_text()
    assert scene.left() == []
