"""A copy says what is not in it, and fails where a page could not be written."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import agl_ui.exporting
from agl_ui.exporting import Export
from agl_ui.places import file_place

from .grouped import fill_with_group
from .stores import apart

AGL = Path(sys.executable).with_name("agl")


def test_a_page_that_cannot_be_read_is_named_and_fails_the_export(tmp_path):
    file = tmp_path / "broken.db"
    rollout_id = apart(fill_with_group(file))
    whole = subprocess.run(
        [AGL, "ui", str(file), "--export", str(tmp_path / "whole")], capture_output=True, text=True
    )
    assert whole.returncode == 0, whole.stderr
    with sqlite3.connect(file) as store:
        store.execute("UPDATE span SET body = replace(body, 'abc', 'abd')")
    done = subprocess.run(
        [AGL, "ui", str(file), "--export", str(tmp_path / "copy")], capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    assert f"rollouts/{rollout_id} (damaged records)" in done.stderr
    assert (tmp_path / "copy" / "index.html").exists()


def test_pages_beyond_the_limit_are_counted(tmp_path, monkeypatch):
    file = tmp_path / "many.db"
    apart(fill_with_group(file))
    monkeypatch.setattr(agl_ui.exporting, "MOST_PAGES", 4)

    async def write():
        place = file_place(file)
        export = Export(place, tmp_path / "copy", 10)
        await export.write()
        await place.store.close()
        return export

    export = apart(write())
    assert export.beyond > 0
    assert export.failed == []
