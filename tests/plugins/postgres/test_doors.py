"""The store by its address: in a file or a script, and served by ``agl store``."""

import asyncio
import contextlib
import json
import re
import shlex
import subprocess
import tempfile
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict
from tests.interpreter import AGL, python, started

import agl
from agl.errors import ConfigError, StoreUnavailableError
from agl.utils.secrets import hide
from agl_postgres.database import public_address
from agl_postgres.store import PostgresLightningStore
from agl_server.commands.store import _spec_of
from agl_views.tables.stores import open_store


@pytest.mark.parametrize("scheme", ["postgresql:", "postgres:", "POSTGRESQL:"])
async def test_an_address_is_a_store(url, scheme):
    trainer = agl.Trainer(store=url.replace("postgresql:", scheme))
    assert isinstance(trainer.store, PostgresLightningStore)
    await trainer.store.close()


@contextlib.contextmanager
def served_process(url):
    """``agl store`` before the database: its process and its address."""
    words = "store", "--port", "0", "--open", "--store", url
    with started(*AGL, *words, stderr=subprocess.PIPE) as process:
        try:
            said = process.stderr.readline().decode()
            assert "http://" in said, said + process.stderr.read().decode()
            yield process, re.search(r"http://\S+", said)[0]
        finally:
            process.terminate()


@contextlib.contextmanager
def served(url):
    with served_process(url) as (_, address):
        yield address


def test_a_folder_is_served_by_its_postgresql():
    # Not in pytest's folder, which each pytest that starts closes to the user of the server.
    with tempfile.TemporaryDirectory(prefix="agl-embedded-") as name:
        (folder := Path(name, "x.postgres")).mkdir()
        with served(str(folder)):
            assert (folder / "data" / "PG_VERSION").exists()


def test_each_schema_is_a_store_and_a_run_says_how_to_read_its_own(url, tmp_path):
    @agl.rollout
    def agent(task: str) -> float:
        return float(len(task))

    for team in ("red", "blue"):
        store = f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3D{team}"
        trainer = agl.Trainer(store=store, run_dir=tmp_path / team)
        result = trainer.dev(agent, [team])
        asyncio.run(trainer.store.close())
        (said,) = re.findall(r"agl (rollouts .*--url\s.*?)\n\S*\s+agl ", result.summary, re.DOTALL)
        (rollout,) = json.loads(python(*AGL, *shlex.split(said), "--json").stdout)
        assert rollout["reward"] == len(team)


def test_a_database_without_a_store_gets_no_tables_by_being_read(url, server, tmp_path):
    for words in (
        *(("rollouts", "--url", url), ("runs", "--url", url)),
        *(("store", "prune", url, "--keep", "1d", "--dry-run"), ("store", "copy", url, "a.db")),
    ):
        refused = python(*AGL, *words, cwd=tmp_path)
        assert refused.returncode == 2, refused.stdout
        assert "no store is there" in refused.stderr
    assert "(0 rows)" in server.psql("\\c agl\nSELECT * FROM pg_tables WHERE schemaname='public'")


def test_a_database_of_another_version_is_not_asked_again(url, server, tmp_path):
    server.psql("\\c agl\nCREATE TABLE agl_version AS SELECT 2 AS version")
    (tmp_path / "agents.py").write_text("import agl\n@agl.rollout\ndef one(task): return 1.0\n")
    (tmp_path / "agl.yaml").write_text(
        f"agent: agents:one\nalgorithm: baseline\ntrain: a.jsonl\nstore: {url!r}\n"
    )
    (tmp_path / "a.jsonl").write_text("1\n")
    refused = python(*AGL, "run", "agl.yaml", f"store={url}", cwd=tmp_path)
    assert "made by another agl" in " ".join(refused.stderr.split()), refused.stderr
    assert refused.returncode == 2


def test_postgres_is_named_alike_by_all_commands_of_a_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = {"path": str(tmp_path / "agl-store.postgres"), "type": "postgres"}
    assert _spec_of("agl store copy", "postgres", is_new=True) == spec
    with pytest.raises(ConfigError, match="there is no store 'postgres'"):
        _spec_of("agl store copy", "postgres", is_new=False)


async def test_a_database_that_cannot_be_written_is_read(url, server):
    store = PostgresLightningStore(url)
    rollout = await store.enqueue_rollout(1)
    await store.close()
    server.psql("ALTER DATABASE agl SET default_transaction_read_only = on")
    read = await asyncio.to_thread(python, *AGL, "rollouts", "--url", url)
    assert (read.returncode, read.stderr) == (0, "")
    assert rollout.rollout_id in read.stdout


async def test_who_reads_ends_no_attempt_that_is_overdue(url):
    store = PostgresLightningStore(url, scan_interval_seconds=1e6)
    await store.enqueue_rollout(1, config=agl.RolloutConfig(timeout_seconds=0.1))
    claimed = await store.dequeue_rollout()
    reader = open_store(None, url)
    await asyncio.sleep(1.5)  # a store that is not only read would have looked
    assert [one.status for one in await reader.query_attempts(claimed.rollout_id)] == ["preparing"]
    await reader.close()
    await store.close()


def test_a_page_is_made_of_a_database(url, tmp_path):
    asyncio.run(PostgresLightningStore(url).close())
    address = url.replace("postgresql:", "POSTGRESQL:")
    made = python(*AGL, "ui", address, "--export", tmp_path / "pages")
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "pages" / "index.html").is_file()


def test_what_cannot_be_reached_is_said_without_its_password():
    with pytest.raises(StoreUnavailableError) as refused:
        PostgresLightningStore("postgresql://agl:secret@127.0.0.1:1/agl")
    assert "secret" not in str(refused.value)
    assert "'postgresql://agl@127.0.0.1:1/agl'" in str(refused.value)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("postgresql://u:secret@h:5/d?sslmode=require", "postgresql://u@h:5/d?sslmode=require"),
        ("postgresql://h/d?password=secret&sslpassword=secret", "postgresql://h/d"),
        ("host=h user=u password=secret dbname=d", "postgresql://u@h/d"),
        ("postgresql://one:5433,two:5434/d", "postgresql://one:5433,two:5434/d"),
        ("host=one,two port=5", "postgresql://one:5,two:5/"),
        ("host=::1 user=u@x/y dbname='my/ db'", "postgresql://u%40x%2Fy@%3A%3A1/my%2F%20db"),
        (
            "host=/tmp/x options=-csearch_path=a",
            "postgresql://%2Ftmp%2Fx/?options=-csearch_path%3Da",
        ),
    ],
)
def test_address_is_shown_as_it_may_be_given_again_without_a_password(given, shown):
    known = conninfo_to_dict(given)
    assert public_address(known) == shown
    again = conninfo_to_dict(shown)
    if known.get("port") == "5" and "," in known["host"]:
        known["port"] = "5,5"
    assert again == {name: value for name, value in known.items() if "password" not in name}


@pytest.mark.parametrize("wrong", ["postgresql://u:se cret@h/d", "http://127.0.0.1:1"])
def test_what_is_no_address_is_refused_without_its_password(wrong):
    with pytest.raises(ConfigError, match="no address of PostgreSQL") as refused:
        PostgresLightningStore(wrong)
    assert "cret" not in str(refused.value)
    assert hide(str(refused.value)) == str(refused.value)
