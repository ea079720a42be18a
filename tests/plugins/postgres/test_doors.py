"""The store by its address: in a file or a script, and served by ``agl store``."""

import asyncio
import contextlib
import re
import subprocess

import pytest
from tests.interpreter import AGL, started

import agl
from agl import LightningStoreClient
from agl.errors import StoreUnavailableError
from agl_postgres import PostgresLightningStore


async def test_an_address_is_a_store(url):
    trainer = agl.Trainer(store=url)
    assert isinstance(trainer.store, PostgresLightningStore)
    await trainer.store.close()


@contextlib.contextmanager
def served(url):
    """The address of ``agl store`` before the database."""
    words = "store", "--port", "0", "--open", "--store", url
    with started(*AGL, *words, stderr=subprocess.PIPE) as process:
        try:
            said = process.stderr.readline().decode()
            assert "http://" in said, said + process.stderr.read().decode()
            yield re.search(r"http://\S+", said)[0]
        finally:
            process.terminate()


async def test_servers_before_one_database_share_what_their_clients_do(url):
    with served(url) as one, served(url) as other:
        first, second = LightningStoreClient(one), LightningStoreClient(other)
        waiting = asyncio.create_task(second.dequeue_many_rollouts(wait_seconds=20))
        await asyncio.sleep(0.2)
        rollout = await first.enqueue_rollout({"n": 1})
        (claimed,) = await waiting
        assert claimed.rollout_id == rollout.rollout_id
        await first.close()
        await second.close()


def test_what_cannot_be_reached_is_said_without_its_password():
    with pytest.raises(StoreUnavailableError) as refused:
        PostgresLightningStore("postgresql://agl:secret@127.0.0.1:1/agl")
    assert "secret" not in str(refused.value)
    assert "'postgresql://agl@127.0.0.1:1/agl'" in str(refused.value)


async def test_a_database_of_another_version_is_left_as_it_is(url, server):
    await PostgresLightningStore(url).close()
    server.psql("\\c agl\nUPDATE agl_version SET version = 99")
    with pytest.raises(StoreUnavailableError, match=r"made by another agl \(schema 99"):
        PostgresLightningStore(url)
