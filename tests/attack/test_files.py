"""Other users of a machine read nothing, and what they leave beside a store does nothing."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from agl.errors import StoreUnavailableError
from agl.types import LLM
from agl_runs.files import make_private_folder
from agl_sqlite import SqliteLightningStore

NOBODY = 65534
another_user = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be another user"
)


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that everybody may look into; pytest's own is closed to others."""
    mask = os.umask(0o022)
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
    os.umask(mask)


def others_read(path: Path) -> bool:
    """Whether another user of the machine gets what is in a file."""
    done = subprocess.run(["cat", path], user=NOBODY, capture_output=True)
    return done.returncode == 0


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.sqlite
@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="the system cannot refuse links")
def test_a_link_in_the_place_of_the_lock_is_not_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / "agl.db.lock").symlink_to(precious)
    with pytest.raises(StoreUnavailableError, match=r"agl\.db\.lock"):
        SqliteLightningStore(str(tmp_path / "agl.db"))
    assert precious.read_text() == "kept"


LEAVES_A_LOG = """
import asyncio, os, sys
import agl

async def main():
    store = agl.SqliteLightningStore(sys.argv[1])
    await store.add_resources({"llm": agl.LLM(endpoint="http://h/v1", model="m", api_key="sk-1")})
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


def leave_a_log(path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", LEAVES_A_LOG, path])
    assert killed.returncode == -signal.SIGKILL


@pytest.mark.sqlite
@another_user
async def test_a_store_that_an_older_version_left_open_is_closed_to_others(shared_folder, caplog):
    path = shared_folder / "agl.db"
    leave_a_log(path)
    files = [path, *(path.with_name(f"agl.db-{end}") for end in ("wal", "shm"))]
    for file in files:
        file.chmod(0o644)  # as the umask had it
    assert b"sk-1" in files[1].read_bytes()
    assert all(map(others_read, files))
    with caplog.at_level(logging.WARNING, "agl"):
        store = SqliteLightningStore(path)
    assert not any(map(others_read, files))
    assert [mode(file) for file in files] == [0o600] * 3
    resources = await store.get_latest_resources()
    assert isinstance(resources.resources["llm"], LLM)
    await store.close()
    await SqliteLightningStore(path).close()
    (said,) = (record.getMessage() for record in caplog.records)
    assert "other users of this machine could open it (mode 0644)" in said


@pytest.mark.sqlite
@another_user
async def test_a_store_of_another_user_keeps_its_mode(shared_folder: Path) -> None:
    path = shared_folder / "agl.db"
    await SqliteLightningStore(path).close()
    os.chown(path, NOBODY, NOBODY)
    path.chmod(0o666)
    await SqliteLightningStore(path).close()
    assert mode(path) == 0o666


@another_user
def test_what_lies_in_a_run_folder_is_not_for_others(shared_folder: Path) -> None:
    run, by_others = shared_folder / "agl-runs" / "one", shared_folder / "made" / "by-others"
    make_private_folder(run)
    by_others.mkdir(parents=True)
    make_private_folder(by_others)
    for folder in (run, by_others):
        (folder / "metrics.jsonl").write_text("{}")
    assert others_read(by_others / "metrics.jsonl")
    assert not others_read(run / "metrics.jsonl")


@pytest.mark.sqlite
@another_user
@pytest.mark.parametrize("end", ["", "-wal", "-shm"])
async def test_what_cannot_be_written_of_a_store_is_named(shared_folder, end):
    path = shared_folder / "agl.db"
    leave_a_log(path)
    for file in (shared_folder, *shared_folder.iterdir()):
        os.chown(file, NOBODY, NOBODY)
    (bad := path.with_name(f"agl.db{end}")).chmod(0o444)
    os.seteuid(NOBODY)
    try:
        with pytest.raises(
            StoreUnavailableError, match=rf"'{bad}' cannot be opened for writing: P"
        ):
            SqliteLightningStore(path)
        bad.chmod(0o600)
        store = SqliteLightningStore(path)
        assert (await store.get_latest_resources()).resources["llm"].model == "m"
        await store.close()
    finally:
        os.seteuid(0)
