"""A trial of ``agl doctor`` is no run for the hooks of a file, and its attempts are theirs."""

import sys

import pytest

from agl.cli import main

MODULE = """
import agl

TOLD = []

@agl.rollout
def agent(task) -> float:
    return 0.5

class Watches(agl.Hook):
    def on_run_start(self, algorithm):
        TOLD.append("run start")

    def on_run_end(self, error):
        TOLD.append("run end")

    async def on_rollout_end(self, *, agent, runner, rollout, spans):
        TOLD.append("rollout end")

class Marked:
    @agl.hookimpl(specname="on_attempt_end")
    def after(self, attempt):
        TOLD.append("attempt end")

    @agl.hookimpl(specname="on_run_end")
    def at_the_end(self, error):
        TOLD.append("run end")

class OnlyRuns:
    @agl.hookimpl
    def on_run_start(self, algorithm):
        TOLD.append("run start")
"""


def test_hooks_of_a_file_are_told_of_attempts_and_of_no_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "doctor_hooks.py").write_text(MODULE)
    (tmp_path / "tasks.jsonl").write_text('{"q": "one"}\n')
    hooks = ", ".join(f"'doctor_hooks:{name}'" for name in ("Watches", "Marked", "OnlyRuns"))
    (tmp_path / "agl.yaml").write_text(
        f"agent: doctor_hooks:agent\ntrain: tasks.jsonl\nalgorithm: baseline\nhooks: [{hooks}]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit):
        main(["doctor"])
    told = sys.modules.pop("doctor_hooks").TOLD
    assert set(told) == {"rollout end", "attempt end"}, capsys.readouterr()
