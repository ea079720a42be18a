"""The file belongs to one owner, stays where it is, and is opened only if it is a store."""

import asyncio
import os
import signal
from contextlib import closing
from pathlib import Path

import pytest
from tests.interpreter import started

from agl.errors import ConfigError, StoreDiskError, StoreUnavailableError
from agl.types import EnqueueRolloutRequest
from agl_sqlite import SqliteLightningStore, database
from agl_sqlite.file import open_to_read


async def test_files_are_their_owners_alone(store, path):
    await store.enqueue_rollout("a key may stand in it")
    assert {
        f.name: f.stat().st_mode & 0o077 for f in path.parent.iterdir() if f.is_file()
    } == dict.fromkeys(("agl.db", "agl.db-shm", "agl.db-wal", "agl.db.lock"), 0)


def move_away(file, replaced):
    file.rename(file.parent / "elsewhere")
    if replaced:
        file.write_bytes(b"something else")


def content_of(file):
    return file.read_bytes() if file.exists() else None


@pytest.mark.parametrize("which", ["", "-wal", ".lock"])
@pytest.mark.parametrize("replaced", [False, True])
async def test_file_that_goes_is_noticed(store, path, which, replaced):
    await store.enqueue_rollout("before")
    gone = Path(f"{path}{which}")
    move_away(gone, replaced)
    await asyncio.sleep(database.LOOK_SECONDS)  # the last look may have been a moment ago
    happened = "replaced by another file" if replaced else "deleted"
    for call in (store.check_health(), store.enqueue_rollout("after"), store.query_rollouts()):
        with pytest.raises(StoreUnavailableError, match=f"{gone.name}' was {happened}") as caught:
            await call
        assert not isinstance(caught.value, StoreDiskError)  # asking again would not help
    await store.close()
    if not which:
        assert content_of(gone) == (b"something else" if replaced else None)


def by_symlink(path):
    (path.parent / "sub").mkdir()
    other = path.parent / "sub" / "other.db"
    other.symlink_to(path)
    return other


def by_hard_link(path):
    other = path.parent / "other.db"
    other.hardlink_to(path)
    return other


OWNER = """
import sys; from agl_sqlite import SqliteLightningStore
store = SqliteLightningStore(sys.argv[1]); print('open', flush=True); sys.stdin.read()
"""


@pytest.mark.parametrize("other_name", [Path, by_symlink, by_hard_link])
def test_second_owner_is_refused_by_every_name(path, other_name):
    with started("-c", OWNER, path) as process:
        assert process.stdout.readline() == b"open\n"
        named = f"in use by process {process.pid}.*LightningStoreClient"
        others = "in use by (another )?process|hard links"
        refused(other_name(path), named if other_name is Path else others)
        process.kill()
    if other_name is not by_hard_link:
        asyncio.run(SqliteLightningStore(path).close())


@pytest.mark.parametrize("other_name", [Path, by_symlink, by_hard_link])
async def test_second_owner_in_the_same_process_is_refused_by_every_name(path, other_name):
    store = SqliteLightningStore(path)
    refused(other_name(path), "open in this process already|hard links")
    await store.enqueue_rollout("task")
    await store.close()


async def test_file_with_two_names_is_refused(path):
    await SqliteLightningStore(path).close()
    other = by_hard_link(path)
    refused(other, "2 names")
    other.unlink()
    await SqliteLightningStore(path).close()


async def test_lock_of_the_next_owner_is_left_alone(store, path):
    lock = Path(f"{path}.lock")
    move_away(lock, replaced=True)
    await store.close()
    assert content_of(lock) == b"something else"


async def test_store_stays_where_it_is_when_the_process_goes_elsewhere(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    store = SqliteLightningStore(path.name)
    monkeypatch.chdir("/")
    await store.enqueue_rollout("task")
    assert (await store.query_rollouts()).total == 1


def refused(path, match, **options):
    with pytest.raises(StoreUnavailableError, match=match) as caught:
        SqliteLightningStore(path, **options)
    assert str(path) in str(caught.value)


def test_file_of_something_else_is_refused_and_unharmed(path):
    path.write_text("dear diary\n" * 1000)
    refused(path, "file is not a database.*No store")
    assert path.read_text() == "dear diary\n" * 1000
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_database_of_something_else_is_refused_and_unharmed(path, sql):
    sql("CREATE TABLE diary (page TEXT)")
    before = path.read_bytes(), path.stat().st_mode
    refused(path, "no store of agl")
    assert (path.read_bytes(), path.stat().st_mode) == before


@pytest.mark.parametrize(
    ("version", "made_by", "advice"),
    [(99, "a newer agl", "Update agl"), (1, "an older agl", "Give a new file; .* --as store")],
)
async def test_file_of_another_version_is_refused_and_unharmed(path, sql, version, made_by, advice):
    await SqliteLightningStore(path).close()
    sql(f"PRAGMA user_version={version}")
    before = path.read_bytes()
    refused(path, f"made by {made_by} .schema {version}, .* {advice}")
    assert path.read_bytes() == before


async def test_file_that_was_cut_off_is_refused_and_unharmed(store, path):
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input="x" * 500)] * 200)
    await store.close()
    content = path.read_bytes()[: 5 * 8192]
    path.write_bytes(content)
    refused(path, "damaged")
    assert path.read_bytes() == content


def test_missing_folder_and_folder_in_place_of_the_file_are_named(path):
    refused(path.parent / "none" / "agl.db", "no folder")
    path.mkdir()
    refused(path, "directory")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder nobody can write to")
def test_folder_that_cannot_be_written():
    refused(Path("/proc/self/agl.db"), "a folder that can be written")


def test_no_file_is_the_store_in_memory():
    with pytest.raises(ConfigError, match="InMemoryLightningStore"):
        SqliteLightningStore(":memory:")


def test_unknown_durability(path):
    with pytest.raises(ConfigError, match="'power' or 'process'"):
        SqliteLightningStore(path, durability="maybe")
    assert not path.exists()


async def test_closed_store_says_so(store):
    await store.close()
    for call in (store.enqueue_rollout("task"), store.dequeue_rollout(), store.query_rollouts()):
        with pytest.raises(StoreUnavailableError, match="closed"):
            await call


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
async def test_forked_process_is_told_to_use_http(path, tmp_path):
    store = SqliteLightningStore(path)
    answer = tmp_path / "answer"
    pid = os.fork()
    if pid == 0:
        try:
            store._check_usable()
        except StoreUnavailableError as error:
            answer.write_text(str(error))
        os._exit(0)
    await asyncio.to_thread(os.waitpid, pid, 0)
    assert "LightningStoreClient" in answer.read_text()
    await store.enqueue_rollout("still works here")
    await store.close()


LEAVES_A_CHILD = """
import os, sys, time
from agl_sqlite import SqliteLightningStore

store = SqliteLightningStore(sys.argv[1])
if (child := os.fork()) == 0:
    os.write(1, b"forked\\n")  # whole, and not as print does, in two parts
    time.sleep(100)
os.write(1, f"{child}\\n".encode())
sys.stdin.read()
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_process_that_outlives_the_owner_does_not_hold_the_store(path):
    with started("-c", LEAVES_A_CHILD, path, text=True) as owner:
        lines = {owner.stdout.readline().strip() for _ in range(2)}
        child = int(next(iter(lines - {"forked"})))
        try:
            refused(path, f"in use by process {owner.pid}")
            owner.stdin.close()
            owner.wait()
            asyncio.run(SqliteLightningStore(path).close())
        finally:
            os.kill(child, signal.SIGKILL)


WRITER = """
import asyncio, sys
from agl_sqlite import SqliteLightningStore

async def main():
    store = SqliteLightningStore(sys.argv[1])
    for number in range(300):
        await store.enqueue_rollout(number)
        if number == 0:
            print("here", flush=True)
    await store.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "opened again"])
def test_who_reads_a_store_leaves_its_owner_the_log(tmp_path, is_new):
    file = tmp_path / "store.db"
    if not is_new:
        asyncio.run(SqliteLightningStore(file).close())
    with started("-c", WRITER, str(file)) as owner:
        assert owner.stdout.readline() == b"here\n"
        while owner.poll() is None:
            with closing(open_to_read(file)) as reader:
                reader.execute("SELECT count(*) FROM rollout").fetchone()
    assert owner.returncode == 0
    with closing(open_to_read(file)) as reader:
        assert reader.execute("SELECT count(*) FROM rollout").fetchone() == (300,)
