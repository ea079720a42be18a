"""What people read while agents run; a line for each rollout is in the screens of ``agl dev``."""

import logging
import re
from typing import Any

import pytest
from tests.interpreter import python

import agl
from agl.utils.logs import setup_logging
from agl_runs.baseline import Baseline


@agl.rollout
def greet(task: str) -> float:
    if task == "Cy":
        raise KeyError("fruit")
    agl.emit_message(f"Hello, {task}")
    return float(len(task) < 4)


class Counting(agl.TraceAdapter[int]):
    def adapt(self, source: Any, /) -> int:
        return len(source)


def dev(level: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Lines of the log of a dry run with three tasks."""
    setup_logging(level)
    trainer = agl.Trainer(
        algorithm=Baseline(max_queue_length=1), strategy="shm", n_runners=1, adapter=Counting()
    )
    trainer.dev(greet, ["Ada", "Cy", "Dora"])
    return [line for line in capsys.readouterr().err.splitlines() if re.match(r"\d{4}-", line)]


FORKS = """
import os, sys, threading
import agl
from agl.utils.logs import stderr_console

agl.setup_logging()
held, done = threading.Event(), threading.Event()

def hold():
    with stderr_console()._lock:
        held.set()
        done.wait()

threading.Thread(target=hold).start()
held.wait()
if (child := os.fork()) == 0:
    import logging
    logging.getLogger("agl").warning("from the child")
    os._exit(0)
status = os.waitpid(child, 0)[1]
done.set()
sys.exit(status)
"""


@agl.rollout
def hostile(task: str) -> float:
    raise ValueError(f"{task}: \x1b]0;title\x07\x1b[2Jgone\n2026-01-01 1/1 forged")


def test_what_an_agent_raises_is_one_line_that_no_terminal_obeys(capsys):
    setup_logging("INFO")
    algorithm = Baseline(max_queue_length=1)
    agl.Trainer(algorithm=algorithm, strategy="shm", n_runners=1).dev(hostile, ["Ada"])
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert "\x07" not in said
    assert r"agent: ValueError: Ada: \x1b]0;title\x07\x1b[2Jgone 2026-01-01 1/1 forged" in said


def test_a_forked_process_logs_although_a_thread_held_the_terminal():
    done = python("-W", "ignore", "-c", FORKS, timeout=60, check=True)
    assert "from the child" in done.stderr


def test_at_level_debug_a_dry_run_says_what_was_recorded(capsys):
    text = "\n".join(dev("DEBUG", capsys))
    assert "Enqueued in train mode: Ada" in text
    assert "#1 agentlightning.message (OK)" in text
    assert "Adapted data: 2" in text
    assert "failed (agent): KeyError: 'fruit'" in text  # the runner's own line
    assert "Not adapted" not in text  # what failed has nothing to be adapted


def test_a_dry_run_of_an_agent_without_spans_says_that_there_is_no_reward(capsys):
    @agl.rollout
    def silent(task: str) -> None:
        pass

    setup_logging("INFO")
    agl.Trainer(strategy="shm", n_runners=1).dev(silent, ["Ada"])
    text = capsys.readouterr().err
    assert "succeeded, no reward" in text
    assert "Not adapted" not in text


def test_the_log_of_the_runner_is_as_it_was_after_a_dry_run(capsys):
    dev("INFO", capsys)
    assert not logging.getLogger("agl.runner.attempt").filters


LOG = """
import logging, agl
agl.setup_logging()
logging.getLogger("agl.x").info("%s end", "word " * 40)
logging.getLogger("agl.x").warning("ro-%s", "0123456789" * 12)
"""


def logged(**env: str) -> list[str]:
    return python("-c", LOG, env=env, check=True).stderr.splitlines()


def test_where_no_terminal_is_a_record_is_one_line():
    first, second = logged(COLUMNS="80")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO \d+ agl\.x: (word ){40} end", first
    )
    assert second.endswith(f" WARNING {second.split()[3]} agl.x: ro-{'0123456789' * 12}")


def test_on_a_terminal_a_record_has_the_time_of_day_and_no_line_breaks_of_ours():
    lines = logged(COLUMNS="80", FORCE_COLOR="1", NO_COLOR="1", TERM="xterm")
    first, second = (re.sub(r"\x1b\[\d*m", "", line) for line in lines)
    assert re.fullmatch(r"\d\d:\d\d:\d\d (word ){40} end", first)
    assert re.fullmatch(rf"\d\d:\d\d:\d\d WARNING ro-{'0123456789' * 12}", second)
