"""The page over a run, served by the run itself as long as it lasts: ``agl run --ui``."""

import asyncio
import webbrowser
from typing import Any

import agl
from agl.algorithm.base import Algorithm
from agl.cli.shared import note
from agl.store.base import LightningStore
from agl.utils.checks import check_numbers
from agl_runs.folders import STORE


class RunPages(agl.Hook):
    """Show the run in a browser while it lasts; its end is the end of the page.

    ``agl ui`` shows the same afterwards, from the run's folder.

    Args:
        port: 0 for a free one.
        browse: Whether to open a browser.
    """

    def __init__(self, port: int = 0, browse: bool = False) -> None:
        check_numbers("ui", whole=True, least=0, port=port)
        self.port, self.browse = port, browse
        self._server: Any = None
        self._opened: LightningStore | None = None
        """The run's file as it is read for the page; the run's store is the run's to close."""

    async def on_run_start(self, algorithm: Algorithm, store: LightningStore) -> None:
        from agl_ui.data_sources import DataSource, DataSources, file_source
        from agl_ui.read_only_store import ReadOnlyStore
        from agl_ui.serving import Server

        folder = algorithm.get_run_folder()
        file = None if folder is None else folder / STORE
        if file is not None and file.is_file():  # read apart from the run, which is not kept
            source = file_source(file)
            self._opened = source.store
        else:
            run_id, _ = algorithm.get_run() or ("run", 1)
            source = DataSource(run_id, f"the store of run {run_id}", ReadOnlyStore(store))
        source.writer = store
        self._server = Server(DataSources(source), port=self.port)
        address = self._server.start()
        note(f"agl ui: {address}")  # a log would break it in two
        if self.browse:
            webbrowser.open(address)

    async def on_run_end(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(server.stop)
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_server": None, "_opened": None}
