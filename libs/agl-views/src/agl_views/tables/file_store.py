"""The file of a store, read beside the process that owns it; it is left as it is."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
    target = innermost(store)
    if isinstance(target, FileStore):
        return await target.ask(question)
    if (file := file_of(target)) is None:
        return None
    with closing(open_to_read(file)) as connection:
        return question(connection)


def _thread() -> ThreadPoolExecutor:
    """One connection, and so one thread: more would only wait for each other."""
    return ThreadPoolExecutor(1, "agl-file-store")


class FewOpen:
    """Of many files only some are open at once: the one that was used longest ago is closed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._used: dict[FileStore, None] = {}
        """The one used last is the last."""

    async def use(self, store: "FileStore") -> None:
        """Make room for one that is about to read."""
        while True:
            self._used.pop(store, None)
            self._used[store] = None
            if len(self._used) <= self._most:
                return
            oldest = next(iter(self._used))
            del self._used[oldest]
            await oldest.close()  # meanwhile this one may have become the oldest


class FileStore(ReadingStore):
    """Answers what is asked, and changes nothing: not the file, nor files beside it.

    A store that is open is read as well; each call sees what was committed before it. The file may
    be replaced meanwhile, and is then opened again.

    Args:
        file: The store's.
        among: Those of which only some are open; a file that was closed is opened again when it is
            read.
    """

    def __init__(self, file: Path, among: FewOpen | None = None) -> None:
        self.path = str(file)
        self._file, self._among = file, among
        self._thread = _thread()
        self._lock = threading.Lock()
        """A thread that was let go may still read when the next one does."""
        self._opened: tuple[Any, SqliteLookups] | None = None

    async def call(self, operation: str, arguments: dict[str, Any]) -> Any:
        """Refuse what would change something.

        Raises:
            NotSupportedError: Always.
        """
        raise NotSupportedError(f"{self._file}: opened to be read; {operation} is not possible")

    async def close(self) -> None:
        await self._in_thread(self._close)
        thread, self._thread = self._thread, _thread()
        thread.shutdown(wait=False)

    async def ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Ask the file what the contract has no question for; ids, and nothing that is hidden."""
        return await self._read(lambda found: question(found.connection))

    async def _read(self, lookup: Callable[[SqliteLookups], T]) -> T:
        if self._among is not None:
            await self._among.use(self)
        return await self._in_thread(lambda: self._look_into(lookup))

    async def _in_thread(self, act: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, act)

    def _let_go(self) -> None:
        if self._opened is not None:
            self._opened[1].connection.close()
        self._opened = None

    def _close(self) -> None:
        with self._lock:
            self._let_go()

    def _look_into(self, lookup: Callable[[SqliteLookups], T]) -> T:
        with self._lock:
            try:
                return lookup(self._lookups())
            except StoreUnavailableError:
                self._let_go()
                raise
            except (sqlite3.Error, OSError) as error:
                self._let_go()
                raise StoreUnavailableError(
                    f"store {self.path!r}: cannot be read: {error}. Was it moved?"
                ) from error
            except ValueError as error:
                if isinstance(error, AglError):
                    raise
                raise named(self.path, error) from error

    def _lookups(self) -> SqliteLookups:
        status = self._file.stat()
        # A file that nobody has open is read as one that does not change; see ``open_to_read``.
        log = self._file.with_name(f"{self._file.name}-wal").exists()
        identity = (status.st_dev, status.st_ino, log, None if log else status.st_mtime_ns)
        if self._opened is None or self._opened[0] != identity:
            self._let_go()
            connection = open_to_read(self._file, is_shared=True)
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            self._opened = identity, SqliteLookups(connection)
        return self._opened[1]
