"""``agl ui`` refuses what it cannot show before it starts."""

import asyncio
from pathlib import Path

from tests.interpreter import AGL, python
from tests.stores import served

from .stores import begin


def refused(store):
    done = python(*AGL, "ui", store)
    assert done.returncode in (1, 2)
    assert "agl ui: http" not in done.stderr
    return done.stderr


def test_a_file_that_is_no_store(tmp_path):
    file = tmp_path / "words.db"
    file.write_text("no store " * 1000)
    assert str(file) in refused(file)


def test_a_folder_of_runs_is_shown_and_one_without_is_refused(tmp_path):
    folder = tmp_path / "old"
    assert f"there is no {tmp_path}/*/store.db" in refused(tmp_path)
    folder.mkdir()
    begin(folder / "store.db", "first")
    done = python(*AGL, "ui", tmp_path, "--export", tmp_path / "copy", check=True)
    assert "first" in Path(done.stdout.strip()).read_text()


async def test_a_server_that_refuses_the_token():
    async with served(token="a" * 32) as (server, _):
        host = server.endpoint.rpartition("@")[2]
        said = await asyncio.to_thread(refused, f"http://agl:{'b' * 32}@{host}")
    assert "token is missing or was refused" in said
