"""What commands show on terminals of 80 and 120 columns, compared with what is stored.

To write the screens anew after a change, and then look at each of them:

    AGL_WRITE_SCREENS=1 python -m pytest tests/plugins/inspect/test_screens.py
"""

import io
import logging
import os
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from agl.cli import main
from agl.plugins import registry
from agl_records.calls.sources import dialects

from . import screen_project

SCREENS = Path(__file__).parent / "screens"
WIDTHS = (80, 120)
OURS = (
    *("agl-core", "agl-adapters", "agl-inspect", "agl-apo", "agl-learning", "agl-runs"),
    "agl-sqlite",
)
"""The packages that listings show: others would change them."""
COMMANDS = {
    "help": "--help",
    "dev": "dev agl.yaml",
    "run": "run agl.yaml",
    "doctor": "doctor",
    "plugins": "plugins",
    "plugins-show": "plugins show baseline",
    "runs": "runs",
    "rollouts": "rollouts",
    "show": "show",
    "show-run": f"show {screen_project.RUN}",
    "spans": "spans",
    "ledger": "ledger",
    "explain": "explain ro-122",
    "report": "report",
}
MADE_NOW = ("dev", "run", "doctor")
"""These run agents: their ids, times and processes are of the moment."""
OF_THE_MOMENT = (
    (r"\b\d{8}T\d{6}Z-[0-9a-f]{4}\b", "20260102T030405Z-0000"),
    (r"\b(ro|at|rs)-([0-9a-f]+)[0-9a-f]{8}\b", r"\1-\g<2>00000000"),
    (r"\b\d\d:\d\d:\d\d\b", "03:04:05"),
    (r"\b\d+\.\d s\b", "0.1 s"),
    (r"\d+ min \d+ s\b", "0.1 s"),
    (r"127\.0\.0\.1:\d+", "127.0.0.1:4747"),
)


@pytest.fixture(params=WIDTHS)
def screen(request, tmp_path, monkeypatch):
    """What a command shows, standard output and error together, without colours."""
    dialects()  # kept for the process: those of all packages, before some are hidden
    scan = registry._scan
    monkeypatch.setattr(
        registry, "_scan", lambda paths: tuple(c for c in scan(paths) if c.distribution in OURS)
    )
    for name in ("AGL_SERVER_PORT", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", str(request.param))
    monkeypatch.setenv("FORCE_COLOR", "1")  # so that rich takes what we read for a terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.syspath_prepend(str(tmp_path / "demo"))
    project = tmp_path / "demo"
    project.mkdir()
    monkeypatch.chdir(project)
    screen_project.make_project(project)
    if request.node.callspec.params["name"] not in MADE_NOW:
        screen_project.make_run(project)
    logger = logging.getLogger("agl")
    before = list(logger.handlers), logger.level, logger.propagate

    def show(name: str) -> str:
        seen = io.StringIO()
        with redirect_stdout(seen), redirect_stderr(seen), pytest.raises(SystemExit):
            main(COMMANDS[name].split())
        text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", seen.getvalue())
        text = text.replace(str(tmp_path), "/home/me")
        for pattern, instead in OF_THE_MOMENT if name in MADE_NOW else ():
            text = re.sub(pattern, instead, text)
        lines = [line.rstrip() for line in text.splitlines()]
        return "\n".join(_in_order(lines) if name in MADE_NOW else lines) + "\n"

    yield show
    sys.modules.pop("greeter", None)
    logger.handlers[:], logger.level, logger.propagate = before


def _in_order(lines: list[str]) -> list[str]:
    """Lines of rollouts by their ids: which of them is read first is a race."""
    places = [n for n, line in enumerate(lines) if re.search(r" \d/\d ro-", line)]
    ordered = sorted((lines[n] for n in places), key=lambda line: line.split("ro-")[1])
    for number, (place, line) in enumerate(zip(places, ordered, strict=True), 1):
        lines[place] = re.sub(r" \d/", f" {number}/", line, count=1)
    return lines


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", COMMANDS)
def test_screen_is_as_it_is_stored(screen, name, request):
    width = request.node.callspec.params["screen"]
    shown, file = screen(name), SCREENS / f"{name}.{width}.txt"
    if os.environ.get("AGL_WRITE_SCREENS"):
        file.write_text(shown, encoding="utf-8")
    assert shown == file.read_text(encoding="utf-8"), "see the top of this file"
