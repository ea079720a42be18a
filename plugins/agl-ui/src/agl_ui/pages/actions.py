"""What a person changes by a click: a rollout is cancelled, or put back into the queue.

A browser asks with JSON and says from where, so that no form of another site can ask; and the token
must allow it. Nothing else of the page changes anything.
"""

import json

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agl.errors import (
    AglError,
    ConfigError,
    InvalidTransitionError,
    NotAllowedError,
    UnknownRecordError,
)
from agl.types import RolloutStatus
from agl_ui.data_sources import DataSources
from agl_ui.pages.page import Page

ACTIONS: dict[str, RolloutStatus] = {"cancel": "cancelled", "requeue": "requeuing"}
"""What is asked -> the status that the rollout gets."""
POSSIBLE = {
    "queuing": ["cancel"],
    "requeuing": ["cancel"],
    "preparing": ["requeue", "cancel"],
    "running": ["requeue", "cancel"],
}
"""Status of a rollout -> what can be asked for."""


def actions_of(request: Request, page: Page) -> list[str]:
    """What who looks may do with the rollout that a page is about."""
    source, status = page.source, getattr(page.values.get("rollout"), "status", "")
    if source is None or source.writer is None or "agl-ui-static" in request.scope:
        return []
    grant = request.scope.get("agl.grant")  # where a store server has looked at a token
    return POSSIBLE.get(status, []) if grant is None or grant.role == "admin" else []


async def perform(request: Request, sources: DataSources) -> Response:
    """Do it; JSON that says what became of it."""
    sent = request.headers.get("origin", "").partition("://")[2]
    if not sent or sent != request.headers.get("host"):
        return _refused(403, "this is for the page itself; the request names another origin")
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        return _refused(415, "expected JSON")
    try:
        wanted = json.loads(await request.body()).get("do")
    except (ValueError, AttributeError, RecursionError):
        wanted = None
    if not isinstance(wanted, str) or wanted not in ACTIONS:
        return _refused(400, f"expected one of {', '.join(ACTIONS)}")
    try:
        source = sources.get(request.path_params["key"])
    except ConfigError as error:
        return _refused(404, str(error))
    if source.writer is None:
        return _refused(
            403,
            "this store is opened to be read. Open its server with an admin's token in the "
            "address, or start the run with --ui, to change what it does",
        )
    try:
        rollout = await source.writer.update_rollout(
            request.path_params["rollout_id"], status=ACTIONS[wanted]
        )
    except AglError as error:
        kinds = {NotAllowedError: 403, UnknownRecordError: 404, InvalidTransitionError: 409}
        known = (status for kind, status in kinds.items() if isinstance(error, kind))
        return _refused(next(known, 503), str(error))
    return JSONResponse({"status": rollout.status})


def _refused(status: int, why: str) -> Response:
    return JSONResponse({"detail": why}, status)
