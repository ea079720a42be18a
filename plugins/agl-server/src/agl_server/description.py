"""The OpenAPI page of a store server, by FastAPI: long to import, and asked for by few."""

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, cast

from fastapi import Body, FastAPI, Query, Response
from starlette import routing

import agl
from agl_server.dispatch import Route


def openapi_of(routes: Sequence[Route], beside: Sequence[routing.Route]) -> dict[str, Any]:
    """The page for the store's routes, and for those of Starlette beside them."""
    api = FastAPI(title="agl store", version=agl.__version__)
    for route in routes:
        api.add_api_route(
            route.path,
            _described(route),
            methods=[route.verb],
            response_model=route.answers,
            status_code=route.status,
        )
    for one in beside:
        verbs = {"GET", "POST"} & cast(set[str], one.methods)
        api.add_api_route(one.path, one.endpoint, methods=[*verbs], response_class=Response)
    return api.openapi()


def _described(route: Route) -> Callable[..., Any]:
    """A function with a signature from which FastAPI describes the route; nobody calls it."""

    async def endpoint(**_: Any) -> None: ...

    kind, empty = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    names = re.findall(r"\{(\w+)", route.path)
    parameters = [inspect.Parameter(name, kind, annotation=str) for name in names]
    if route.body is not None:
        hint = route.body | None if route.may_be_empty else route.body
        hint = Annotated[hint, Body() if route.verb == "POST" else Query()]
        default = None if route.may_be_empty else empty
        parameters.append(inspect.Parameter("body", kind, annotation=hint, default=default))
    endpoint.__name__ = route.name or route.answer.__name__
    endpoint.__doc__ = route.says or route.answer.__doc__
    vars(endpoint)["__signature__"] = inspect.Signature(parameters)
    return endpoint
