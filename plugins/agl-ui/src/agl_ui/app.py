"""The application: addresses, what every answer carries, and errors that say what to do."""

import functools
import hashlib
import logging
from collections.abc import Awaitable, Callable, Collection
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

import agl
from agl.errors import (
    AglError,
    ConfigError,
    DamagedRecordError,
    InvalidQueryError,
    NotAllowedError,
    UnknownRecordError,
)
from agl_ui.data_sources import DataSources
from agl_ui.live import events
from agl_ui.pages import actions, parts, prompts, rollout, rollouts, run, runs, task
from agl_ui.pages.page import Page, check_query
from agl_ui.prompt_tree import has_prompts
from agl_ui.read_only_store import DAMAGE, Damage
from agl_ui.templating import environment

logger = logging.getLogger("agl.ui")

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""Nothing but files of ours runs or is loaded; images may stand in the data."""
STATIC_POLICY = "default-src 'none'; style-src 'self' file:; img-src 'self' file: data:"
"""The same for a copy, which may lie in a folder; it has no script."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
THEMES = ("auto", "light", "dark")
STATIC = {
    "style.css": "text/css",
    "rollout.css": "text/css",
    "live.js": "text/javascript",
    "spans.js": "text/javascript",
    "ui.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
ROLLOUT = {"attempt", "step", "colour", "turn", "spans", "span", "call", "tokens", "token", "again"}
"""What the address of a rollout's page may say."""
Write = Callable[[Request, Any], Awaitable[Page | Response]]
"""Writes a page of the store that its address names, or where it names none, of all; or it gives an
answer that is ready."""
PAGES: dict[str, tuple[Write, set[str]]] = {
    "/": (runs.write, set()),
    "/compare": (runs.compare, {"run*", "from", "to"}),
    "/s/{key}/": (run.overview, set()),
    "/s/{key}/run/{run_id}": (run.write, {"from", "to"}),
    "/s/{key}/run/{run_id}/tasks": (run.tasks, set()),
    "/s/{key}/prompts": (prompts.write, {"run", "candidate", "against", "split"}),
    "/s/{key}/task": (task.write, {"rollout", "step"}),
    "/s/{key}/resources": (parts.resources, {"from"}),
    "/s/{key}/runners": (parts.runners, {"from"}),
    "/s/{key}/settings": (parts.settings, {"from"}),
    "/s/{key}/rollouts": (
        rollouts.write,
        {"status*", "mode", "step", "run", "id", "below", "above", "sort", "size", "after"},
    ),
    "/s/{key}/rollouts/{rollout_id}": (rollout.write, ROLLOUT),
    "/s/{key}/rollouts/{rollout_id}/raw": (rollout.raw, {"attempt", "call", "message", "image"}),
    "/s/{key}/rollouts/{rollout_id}/spans": (rollout.spans, {"attempt", "from"}),
    "/s/{key}/rollouts/{rollout_id}/why.json": (rollout.explained, ROLLOUT),
}
"""Address -> who writes its page, and what it may say."""


def routes(sources: DataSources) -> list[Route]:
    """Every address of the page; below any path where they are mounted."""
    found = [Route(path, _page(write, sources, names)) for path, (write, names) in PAGES.items()]
    act = functools.partial(actions.perform, sources=sources)
    told = _headed(events(sources))
    found += [Route(path, told) for path in ("/events", "/s/{key}/events")]
    found.append(Route("/s/{key}/rollouts/{rollout_id}/act", _headed(act), methods=["POST"]))
    found.append(Route("/theme/{name}", _theme))
    found.append(Route("/static/{name}", _static))
    found.append(Route("/{rest:path}", _page(_nothing, sources)))
    return found


async def _nothing(request: Request, sources: DataSources) -> Page:
    raise ConfigError(f"there is no page {request.url.path[:200]!r}")


def _page(
    write: Write, sources: DataSources, names: Collection[str] | None = None
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        DAMAGE.set(damage := Damage())
        try:
            if names is not None:
                check_query(request, names)
            key = request.path_params.get("key")
            page = await write(request, sources if key is None else sources.get(key))
        except (UnknownRecordError, ConfigError) as error:
            page = Page("error.html", {"title": "Not found", "text": str(error)}, status=404)
        except (InvalidQueryError, HTTPException) as error:
            text = error.detail if isinstance(error, HTTPException) else str(error)
            plain = request.url.path if request.url.query else ""
            about = {"title": "This cannot be shown", "text": text, "plain": plain}
            page = Page("error.html", about, status=400)
        except NotAllowedError as error:
            about = {"title": "The store refuses the token", "text": str(error)}
            page = Page("error.html", about, status=403)
        except AglError as error:
            logger.warning("%s: %s", request.url.path, error)
            is_one = isinstance(error, DamagedRecordError)
            title = "A record of the store is damaged" if is_one else "The store cannot be read"
            about = {"title": title, "text": str(error)}
            page = Page("error.html", about, status=503)
        except Exception as error:  # one page; the others go on
            page = _fault(request, error)
        if isinstance(page, Response):
            page.headers.update({**HEADERS, **dict(page.headers)})
            return page
        page.problems = list(damage.problems)
        page.has_prompts = page.source is not None and await has_prompts(page.source)
        try:
            html = await run_in_threadpool(render, request, page)
        except Exception as error:  # what is stored is odder than a template thought
            page = _fault(request, error)
            html = render(request, page)
        return Response(html, page.status, HEADERS, media_type="text/html")

    return answer


def _fault(request: Request, error: Exception) -> Page:
    logger.error("%s cannot be drawn", request.url.path, exc_info=error)
    text = (
        f"This page met a fault of agl ui ({type(error).__name__}); the terminal where it runs has "
        "the whole of it. Other pages go on."
    )
    return Page("error.html", {"title": "This cannot be shown", "text": text}, status=500)


def _headed(
    ask: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """With what every answer carries."""

    async def answer(request: Request) -> Response:
        done = await ask(request)
        done.headers.update(HEADERS)
        return done

    return answer


def render(request: Request, page: Page) -> bytes:
    """The HTML of a page; what no encoding has is written out."""
    root = request.scope.get("root_path", "").rstrip("/")
    theme = request.cookies.get("agl-theme", "auto")
    here = request.url.path
    if request.url.query:
        here += f"?{request.url.query}"
    context: dict[str, Any] = {
        "root": root,
        "version": agl.__version__,
        "theme": theme if theme in THEMES else "auto",
        "here": here,
        "asset": _asset_version(),
        "source": page.source,
        "base": f"{root}/s/{quote(page.source.key, safe='')}" if page.source else root,
        "tab": page.tab,
        "state": page.state,
        "about": page.about,
        "problems": page.problems,
        "has_prompts": page.has_prompts or page.tab == "prompts",
        "is_static": False,
        "actions": actions.actions_of(request, page),
        **page.values,
    }
    if (damage := request.scope.get("agl-ui-static")) is not None:  # a copy, which stays as it is
        damage += page.problems
        context |= {"is_static": True, "state": "", "policy": STATIC_POLICY}
    html = environment().get_template(page.template).render(context)
    return html.encode("utf-8", "backslashreplace")


async def _theme(request: Request) -> Response:
    """Keep the choice in a cookie, and go back."""
    name, back = request.path_params["name"], request.query_params.get("back", "")
    if name not in THEMES:
        said = f"there are no such colours; expected {', '.join(THEMES)}"
        return Response(said, 404, HEADERS, media_type="text/plain")
    root = request.scope.get("root_path", "").rstrip("/")
    # Only to a page of this server: no scheme, and no host after two slashes.
    if not back.startswith("/") or back.startswith(("//", "/\\")) or "\\" in back:
        back = f"{root}/"
    answer = RedirectResponse(back, 303, HEADERS)
    kept: dict[str, Any] = {"path": root or "/", "httponly": True, "samesite": "lax"}
    answer.set_cookie("agl-theme", name, max_age=31_536_000, **kept)
    return answer


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        return Response("no such file", 404, HEADERS, media_type="text/plain")
    kept = {**HEADERS, "Cache-Control": "private, max-age=86400"}
    return Response(asset(name), 200, kept, media_type=STATIC[name])


def asset(name: str) -> bytes:
    """One of our files."""
    return files("agl_ui").joinpath("static", name).read_bytes()


@functools.cache
def _asset_version() -> str:
    """Stands in the addresses of our files, so that a browser keeps none of an older agl."""
    digest = hashlib.blake2b(digest_size=6)
    for name in STATIC:
        digest.update(asset(name))
    return digest.hexdigest()
