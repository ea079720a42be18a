"""The file of a store, read beside the process that owns it; it is left as it is."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from agl.errors import AglError, NotSupportedError, StoreUnavailableError
from agl.store.base import LightningStore
from agl.store.engine.reading import ReadingStore
from agl_runs.finding import innermost
from agl_sqlite import SqliteLightningStore
from agl_sqlite.file import named, open_to_read
from agl_sqlite.lookups import SqliteLookups

T = TypeVar("T")
_CACHE_KIB = 64 * 1024
"""A long trace fits; with SQLite's 2 MiB each look at it would read it several times."""


def file_of(store: LightningStore) -> Path | None:
    """The file in which a store of this machine lies; None where there is none."""
    target = innermost(store)
    is_file = isinstance(target, FileStore | SqliteLightningStore)
    return Path(target.path) if is_file else None


async def ask_file(store: LightningStore, question: Callable[[sqlite3.Connection], T]) -> T | None:
    """Ask the file of a store what the contract has no question for; None where it has none.

    The question gets ids, and nothing that is hidden.
    """
    file = file_of(store)
    return None if file is None else await FileStore(file).ask(question)


class FileStore(ReadingStore):
    """Answers what is asked, and changes nothing: not the file, nor files beside it.

    A store that is open is read as well. Each call opens the file, which may be replaced between
    calls, and sees what was committed before.
    """

    def __init__(self, file: Path) -> None:
        self.path = str(file)

    async def call(self, operation: str, arguments: dict[str, Any]) -> Any:
        """Refuse what would change something.

        Raises:
            NotSupportedError: Always.
        """
        raise NotSupportedError(f"{self.path}: opened to be read; {operation} is not possible")

    async def ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Ask the file what the contract has no question for; ids, and nothing that is hidden."""
        return await self._read(lambda found: question(found.connection))

    async def _read(self, lookup: Callable[[SqliteLookups], T]) -> T:
        return await asyncio.to_thread(self._look_into, lookup)

    def _look_into(self, lookup: Callable[[SqliteLookups], T]) -> T:
        try:
            with closing(open_to_read(Path(self.path))) as connection:
                connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
                return lookup(SqliteLookups(connection))
        except AglError:
            raise
        except (sqlite3.Error, OSError) as error:
            raise StoreUnavailableError(
                f"store {self.path!r}: cannot be read: {error}. Was it moved?"
            ) from error
        except ValueError as error:
            raise named(self.path, error) from error
