"""The page at ``/ui`` of a store server, for who has a token of a reader or of an admin."""

from typing import TYPE_CHECKING, Any

import agl

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from agl.store.base import LightningStore

PATH = "/ui"
PAGES_OF_0_3 = {
    "/": "",
    "/resources": "resources",
    "/rollouts": "rollouts",
    "/runners": "runners",
    "/settings": "settings",
    "/traces": "rollouts",
    "/workers": "runners",
}
"""Where 0.3's dashboard had its pages, at the address of the server itself -> ours of this name."""


class _Pages:
    """The application, made when somebody looks: most servers are for programs alone."""

    def __init__(self, store: "LightningStore") -> None:
        self._store = store
        self._app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request."""
        if self._app is None:
            from starlette.applications import Starlette

            from agl_ui.app import routes
            from agl_ui.data_sources import DataSource, DataSources
            from agl_ui.read_only_store import ReadOnlyStore

            source = DataSource("store", "the store of this server", ReadOnlyStore(self._store))
            source.writer = self._store
            self._app = Starlette(routes=routes(DataSources(source)))
        await self._app(scope, receive, send)


@agl.hookimpl
def store_routes(store: "LightningStore") -> "list[BaseRoute]":
    """The page of the store that is about to be served."""
    from starlette.requests import Request
    from starlette.responses import RedirectResponse
    from starlette.routing import Mount, Route

    pages = {**PAGES_OF_0_3, PATH: ""}

    async def enter(request: Request) -> RedirectResponse:
        return RedirectResponse(f"{PATH}/s/store/{pages[request.url.path]}", 303)

    # Without the slash, an address would be relative to the root.
    return [*(Route(path, enter) for path in pages), Mount(PATH, app=_Pages(store))]
