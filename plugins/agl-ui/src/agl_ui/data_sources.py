"""The stores that the page shows, and what tells that one has changed."""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel

from agl.errors import AglError, ConfigError, NotSupportedError
from agl.store.base import LightningStore
from agl.types import PaginatedResult
from agl_http.roles import ALLOWED
from agl_http.tokens import without_token
from agl_learning.reports.run_metrics import RunMetrics
from agl_records.ledger.documents import KIND as LEDGER, LOST
from agl_runs.finding import last_time, open_server, placed
from agl_runs.folders import RUNS, STORE, STORES
from agl_runs.records import Run
from agl_runs.store import KIND as RUNS_KIND, query_runs
from agl_ui.read_only_store import ReadOnlyStore
from agl_views.runs.prompt_runs import PromptRuns
from agl_views.tables.file_store import FileStore

logger = logging.getLogger("agl.ui")
NEWEST = 50
"""Runners and rollouts under way among which a change is seen, of a store without a file."""


@dataclass
class DataSource:
    """One store."""

    key: str
    """It stands in addresses."""
    title: str
    store: LightningStore
    file: Path | None = None
    """None for one behind a server."""
    writer: LightningStore | None = None
    """What changes it, for what a person clicks; None where nothing may."""
    memory: dict[str, Any] = field(default_factory=dict[str, Any])
    """What pages keep of it between requests."""
    reading: int = 0
    """Grows when a page has read on, and those who wait for the rest are to ask again."""

    async def runs(self) -> list[Run]:
        """Its runs, the newest first; none where it is too old to know of any."""
        try:
            runs = await query_runs(self.store)
        except NotSupportedError:
            return []
        if self.file is not None:
            runs = [placed(run, self.file) for run in runs]
        return sorted(runs, key=last_time, reverse=True)

    async def state(self) -> str:
        """A text that is another one when the store has changed; cheap to ask for."""
        if self.file is not None:
            names = [self.file, self.file.with_name(f"{self.file.name}-wal")]
            names.append(self.file.parent / RunMetrics.FILE)
            return _digest([self.reading, *(_status(name) for name in names)])
        # How many there are of all, and the newest of each. A change that is neither of number nor
        # of status, in a record that is not among the newest, is not seen.
        store, newest = self.store, dict[str, Any](sort_order="desc", limit=1)
        heard: dict[str, Any] = {"sort_by": "last_heartbeat_time", "sort_order": "desc"}
        looks: list[Awaitable[Any]] = [
            store.statistics(),
            store.query_rollouts(**newest),
            store.query_rollouts(status_in=["succeeded"], **newest),
            store.query_rollouts(status_in=["failed", "cancelled"], **newest),
            store.query_rollouts(status_in=["queuing", "requeuing"], **newest),
            store.query_rollouts(
                status_in=["preparing", "running"], sort_order="desc", limit=NEWEST
            ),
            store.query_resources(sort_by="update_time", **newest),
            store.query_workers(**heard, limit=NEWEST),
            store.query_documents(RUNS_KIND),
            store.query_documents(PromptRuns.ENTRIES, limit=1),
            store.query_documents(LEDGER, limit=1),
            store.query_documents(LOST),
        ]
        return _digest([self.reading, *await asyncio.gather(*map(_seen, looks))])


async def _seen(look: Awaitable[Any]) -> Any:
    """What is compared of an answer; nothing where a store is too old to be asked so."""
    try:
        found = await look
    except NotSupportedError:
        return None
    if not isinstance(found, PaginatedResult):
        return [(name, found[name]) for name in sorted(found) if name.startswith("total")]
    return found.total, [one.model_dump_json() for one in cast("Sequence[BaseModel]", found)]


def _status(name: Path) -> tuple[int, int] | None:
    try:
        status = name.stat()
    except OSError:
        return None
    # Who reads a file that nobody has open makes an empty log, and removes it.
    return (status.st_size, status.st_mtime_ns) if status.st_size else None


def _digest(value: Any) -> str:
    return hashlib.blake2b(repr(value).encode(errors="replace"), digest_size=8).hexdigest()


class DataSources:
    """All of them.

    Args:
        only: The one that is shown; None for those of all runs in a folder, looked for at each
            request.
        folder: Of runs.
    """

    def __init__(self, only: DataSource | None = None, folder: Path = Path(RUNS)) -> None:
        self._only, self._folder = only, folder
        self.title = "the list of runs"
        self.memory: dict[str, Any] = {}
        """As that of a ``DataSource``, for what is about all of them."""
        self._known: dict[str, DataSource] = {} if only is None else {only.key: only}

    def all(self) -> list[DataSource]:
        """Those that are there now."""
        if self._only is not None:
            return [self._only]
        files = {file.parent.name: file for file in sorted(self._folder.glob(f"*/{STORE}"))}
        for key, file in files.items():
            if key not in self._known:
                self._known[key] = file_source(file.absolute())
        return [self._known[key] for key in files]

    async def state(self) -> str:
        """A text that is another one when one of them has changed, or another one is there."""

        async def one(source: DataSource) -> tuple[str, str]:
            try:
                return source.key, await source.state()
            except AglError:
                return source.key, "unreadable"

        return _digest(await asyncio.gather(*map(one, self.all())))

    async def check(self) -> None:
        """Look at the one store that was named, so that a wrong one is told before the start.

        Raises:
            AglError: It is no store, or refuses to be read.
        """
        if self._only is not None:
            await self._only.runs()

    def get(self, key: str) -> DataSource:
        """One of them.

        Raises:
            ConfigError: There is none of this key.
        """
        for source in self.all():
            if source.key == key:
                return source
        raise ConfigError(f"there is no store {key!r} here")

    async def newest(self) -> DataSource:
        """The one whose run was begun last, of those that can be read.

        Raises:
            ConfigError: There is none.
        """
        last: dict[str, float] = {}
        why = ""
        for source in self.all():
            try:
                runs = await source.runs()
            except AglError as error:
                logger.warning("%s is passed over: %s", source.key, error)
                why = f" that can be read: {error}"
                continue
            last[source.key] = last_time(runs[0]) if runs else 0.0
        if not last:
            raise ConfigError(f"there is no store here{why}")
        return self.get(max(last, key=lambda key: last[key]))

    async def close(self) -> None:
        """Let go of all files and connections."""
        for source in self._known.values():
            await source.store.close()


def file_source(file: Path) -> DataSource:
    """The source of a store's file."""
    name = file.absolute().parent.name if file.name in STORES else file.stem
    if file.is_dir():
        return DataSource(name, str(file), ReadOnlyStore(open_server(file)))
    return DataSource(name or "store", str(file), ReadOnlyStore(FileStore(file)), file)


def server_source(url: str) -> DataSource:
    """The source of a store behind a server."""
    client, (title, token) = open_server(url), without_token(url)
    path = getattr(client, "path", None)  # of a PostgreSQL, without its password
    # A token of a lower role says so; which token of an admin it is, only its server knows.
    writer = None if path or (token or "").partition(".")[0] in ALLOWED else client
    return DataSource("server", path or title, ReadOnlyStore(client), writer=writer)
