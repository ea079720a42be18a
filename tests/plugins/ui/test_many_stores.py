"""Any number of runs is shown, though a process may have only so many files open."""

import shutil

from tests.interpreter import python

from .grouped import fill_with_group

LOOK = """
import resource, urllib.request
from agl_ui.data_sources import DataSources
from agl_ui.serving import Server

resource.setrlimit(resource.RLIMIT_NOFILE, (110, 110))
server = Server(DataSources(), is_open=True)
address = server.start().rstrip("/")
for path in ("/", "/", "/s/run0/rollouts", "/s/run139/rollouts", "/s/run0/rollouts", "/"):
    with urllib.request.urlopen(address + path) as answer:
        assert "run139" in answer.read().decode() or "run0" in path, path
server.stop()
"""


def test_more_stores_than_a_process_may_open_files_are_shown(tmp_path):
    file = tmp_path / "store.db"
    fill_with_group(file)
    for number in range(140):
        folder = tmp_path / f"agl-runs/run{number}"
        folder.mkdir(parents=True)
        shutil.copy(file, folder / "store.db")
    done = python("-c", LOOK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
