"""The pages of one store as files that need no server: relative links, no script, one folder."""

import hashlib
import html
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urljoin, urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from agl.errors import ConfigError
from agl.utils.files import make_private_folder
from agl_ui.app import STATIC, STATIC_PAGES, asset, routes
from agl_ui.places import Place, Places

MOST_PAGES = 5_000
"""Beside those of rollouts."""
ENTRY = "index.html"
KEPT = [name for name in STATIC if not name.endswith(".js")]
_LINK = re.compile(r' href="([/?][^"]*)"')


@dataclass
class Export:
    """What is written, and what is left out.

    Args:
        place: The store.
        folder: Where; a new one, or one that is empty.
        most_rollouts: Pages of rollouts at most: those that other pages name first.
        say: Is told how many pages are written and are known to come.
    """

    place: Place
    folder: Path
    most_rollouts: int
    say: Callable[[int, int], None] = lambda done, known: None
    left_out: int = 0
    """Rollouts that are named on a page and have none."""
    beyond: int = 0
    """Other pages that are named, and are more than ``MOST_PAGES``."""
    failed: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Pages that could not be written as they are: address, and status or what is wrong."""
    _names: dict[str, str | None] = field(default_factory=dict[str, str | None])
    """Address -> its file; None for one that is not written."""
    _waiting: deque[str] = field(default_factory=deque[str])
    _rollouts: int = 0

    async def write(self) -> int:
        """Write everything; the number of pages, those that failed among them.

        Raises:
            ConfigError: There are files in the folder already.
        """
        if self.folder.exists() and any(self.folder.iterdir()):
            raise ConfigError(
                f"--export {str(self.folder)!r}: there are files in it already. Name a new folder"
            )
        make_private_folder(self.folder)
        for name in KEPT:
            (self.folder / name).write_bytes(asset(name))
        table = routes(Places(self.place))
        runs = await self.place.runs()
        base = f"/s/{self.place.key}/"
        first = f"{base}run/{runs[0].run_id}" if runs else f"{base}rollouts"
        self._names |= {first: ENTRY, base: ENTRY, "/": ENTRY}
        self._waiting.append(first)
        done = 0
        while self._waiting:
            address = self._waiting.popleft()
            damage: list[str] = []
            answer = await _answer(table, address, damage)
            if answer.status_code != 200 or damage:
                why = "damaged records" if damage else str(answer.status_code)
                self.failed.append((address, why))
            body = bytes(answer.body)
            if answer.headers["content-type"].startswith("text/html"):
                text = _LINK.sub(lambda found: self._relative(address, found), body.decode())  # noqa: B023
                body = text.encode()
            name = self._names[address]
            assert name is not None
            (self.folder / name).write_bytes(body)
            done += 1
            self.say(done, done + len(self._waiting))
        return done

    def _relative(self, page: str, found: re.Match[str]) -> str:
        """A link of a page as it stands in the copy: to a file beside, or to nothing."""
        address, _, mark = urljoin(page, html.unescape(found[1])).partition("#")
        if address.startswith("/static/"):
            return f' href="{urlsplit(address).path.removeprefix("/static/")}"'
        name = self._name_of(address)
        if name is None:
            return ' data-left-out title="not in this copy"'
        return f' href="{name}{"#" if mark else ""}{html.escape(mark)}"'

    def _name_of(self, address: str) -> str | None:
        parts = urlsplit(address)
        pairs = sorted(pair for pair in parse_qsl(parts.query) if pair[1])
        address = f"{unquote(parts.path)}{'?' if pairs else ''}{urlencode(pairs)}"
        if address not in self._names:
            self._names[address] = self._chosen(address, dict(pairs))
            if self._names[address] is not None:
                self._waiting.append(address)
        return self._names[address]

    def _chosen(self, address: str, query: dict[str, str]) -> str | None:
        start = f"/s/{self.place.key}/"
        path = address.partition("?")[0]
        if not path.startswith(start):
            return None
        page, _, which = path.removeprefix(start).partition("/")
        is_rollout = page == "rollouts" and bool(which)
        allowed = STATIC_PAGES.get("rollout" if is_rollout else page)
        if allowed is None or not query.keys() <= allowed:
            return None
        if is_rollout and "/" not in which and not query:
            if self._rollouts >= self.most_rollouts:
                self.left_out += 1
                return None
            self._rollouts += 1
        elif len(self._names) - self._rollouts > MOST_PAGES:
            self.beyond += 1
            return None
        elif is_rollout and f"{start}rollouts/{which.partition('/')[0]}" not in self._names:
            return None  # more of a rollout that is left out
        return _file_name(
            address.removeprefix(start), ".txt" if which.endswith("/raw") else ".html"
        )


def _file_name(address: str, ending: str) -> str:
    """A name that any file system takes, and that no other address has."""
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", address).strip("-.")
    if plain == address and len(plain) < 60:
        return f"{plain}{ending}"
    digest = hashlib.blake2b(address.encode(errors="replace"), digest_size=5).hexdigest()
    return f"{plain[:60]}-{digest}{ending}"


async def _answer(table: list[Route], address: str, damage: list[str]) -> Response:
    """The answer of an address; ``damage`` gets what the page passed over."""
    parts = urlsplit(address)
    path = parts.path
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "root_path": "",
        "query_string": parts.query.encode(),
        "headers": [],
        "scheme": "http",
        "server": ("copy", 80),
        "agl-ui-static": damage,
    }
    for route in table:
        match, more = route.matches(scope)
        if match is Match.FULL:
            return await route.endpoint(Request({**scope, **more}))
    raise ConfigError(f"{address}: there is no such page")
