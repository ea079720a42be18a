"""Resources, runners and settings of a store."""

from starlette.requests import Request

from agl.runs.differences import flat
from agl_ui.pages.page import Page, whole_number
from agl_ui.places import Places

PAGE = 50


async def resources(request: Request, places: Places) -> Page:
    """Snapshots, the newest first."""
    place = places.get(request.path_params["key"])
    state = await place.state()
    size = min(whole_number(request, "size", PAGE) or PAGE, 500)
    found = await place.store.query_resources(sort_order="desc", limit=size)
    values = {
        "title": "Resources",
        "total": found.total,
        "snapshots": [
            (
                one,
                {name: each.model_dump(exclude_none=True) for name, each in one.resources.items()},
            )
            for one in found
        ],
    }
    return Page("resources.html", values, place, "resources", state=state)


async def runners(request: Request, places: Places) -> Page:
    """Workers, the last that were heard of first."""
    place = places.get(request.path_params["key"])
    state = await place.state()
    found = await place.store.query_workers(
        sort_by="last_heartbeat_time", sort_order="desc", limit=PAGE
    )
    values = {"title": "Runners", "workers": list(found), "total": found.total}
    return Page("runners.html", values, place, "runners", state=state)


async def settings(request: Request, places: Places) -> Page:
    """Options and versions of the newest runs."""
    place = places.get(request.path_params["key"])
    runs = [(run, flat(run.config)) for run in (await place.runs())[:5]]
    return Page("settings.html", {"title": "Settings", "runs": runs}, place, "settings")
