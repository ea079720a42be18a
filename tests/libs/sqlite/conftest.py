import contextlib
import sqlite3

import pytest

from agl_sqlite import SqliteLightningStore


@pytest.fixture
def path(tmp_path):
    return tmp_path / "agl.db"


@pytest.fixture
def sql(path):
    """Carries out SQL in the closed file; the rows of the last statement."""

    def execute(*statements):
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            return [connection.execute(one).fetchall() for one in statements][-1]

    return execute


@pytest.fixture
async def reopen(path, sql):
    """Opens the store; the one before is closed, and then its file changed, by what is given."""
    opened = []

    async def open_(*changes, **options):
        if opened:
            await opened.pop().close()
        if changes:
            sql(*changes)
        opened.append(SqliteLightningStore(path, **options))
        return opened[0]

    yield open_
    if opened:
        await opened.pop().close()


@pytest.fixture
async def store(reopen):
    return await reopen()
