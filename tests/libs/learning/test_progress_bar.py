"""Bars are drawn where a terminal is, beneath the log, and nothing is where none is."""

from tests.interpreter import python

from agl_learning.reports.progress_bar import Bar

DRAW = """
import logging, agl
from agl_learning.reports.progress_bar import Bar
agl.setup_logging()
with Bar("grpo", 4, reward="") as bar, Bar("apo", None):
    bar.update(1, reward="reward 0.5")
    logging.getLogger("agl.x").info("a line of the log")
    bar.update(3)
"""


def drawn(**env: str) -> str:
    return python("-c", DRAW, env=env, check=True).stderr


def test_bar_on_a_terminal_shows_how_much_is_done_and_the_time_left():
    shown = drawn(FORCE_COLOR="1", NO_COLOR="1", TERM="xterm", COLUMNS="80")
    for words in ("grpo", "3/4", "reward 0.5", "a line of the log\n"):
        assert words in shown


def test_nothing_but_the_log_is_written_without_a_terminal():
    (line,) = drawn(COLUMNS="80").splitlines()
    assert line.endswith("INFO " + line.split()[3] + " agl.x: a line of the log")


def test_bar_that_is_not_to_be_shown_shows_nothing(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Bar("grpo", 4, shows=False) as bar:
        bar.update(4)
    monkeypatch.delenv("FORCE_COLOR")
    with Bar("grpo", 4) as bar:
        bar.update(4)
        assert not bar.is_seen
    assert capsys.readouterr().err == ""
