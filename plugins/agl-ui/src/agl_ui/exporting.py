"""The pages of one store as files that need no server: relative links, no script, one folder."""

import hashlib
import html
import re
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urljoin, urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from agl.errors import ConfigError
from agl_runs.files import make_private_folder
from agl_ui.app import STATIC, asset, routes
from agl_ui.data_sources import DataSource, DataSources

MOST_PAGES = 5_000
"""Beside those of rollouts, and of tokens."""
ENTRY = "index.html"
KEPT = [name for name in STATIC if not name.endswith(".js")]
_LINK = re.compile(r' href="([/?][^"]*)"')
_IMAGE = re.compile(r"/raw\?.*\bimage=\d")
PAGES: dict[str, set[str]] = {
    "run": set(),
    "rollouts": {"step", "run", "status", "after"},
    "task": {"rollout", "step"},
    "prompts": {"run", "candidate", "against", "split"},
    "resources": {"from"},
    "runners": {"from"},
    "settings": {"from"},
}
"""Pages of a store that a copy has -> what their addresses may say."""
OF_A_ROLLOUT = {
    "why": {"attempt", "turn", "call", "token"},
    "spans": {"attempt", "spans"},
    "conversation": {"attempt", "turn"},
    "call": {"attempt", "turn"},
    "tokens": {"attempt", "turn", "call", "tokens"},
    "": {"attempt"},
}
"""Place on a rollout's page that a link leads to -> what is kept of the link, so that a copy has
each window once, and not each with each."""


@dataclass
class Export:
    """What is written, and what is left out.

    Args:
        source: The store.
        folder: Where; a new one, or one that is empty.
        most_rollouts: Pages of rollouts at most: those that other pages name first.
        most_tokens: Pages that say why of a token at most; the same.
        say: Is told how many pages are written and are known to come.
    """

    source: DataSource
    folder: Path
    most_rollouts: int
    most_tokens: int = 0
    say: Callable[[int, int], None] = lambda done, known: None
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Pages that are named and are not written, as there are so many: of ``rollouts``, of
    ``tokens``, and ``others``."""
    failed: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Pages that could not be written as they are: address, and status or what is wrong."""
    _names: dict[str, str | None] = field(default_factory=dict[str, str | None])
    """Address -> its file; None for one that is not written."""
    _waiting: deque[str] = field(default_factory=deque[str])
    _num: Counter[str] = field(default_factory=Counter[str])
    """Pages of each kind that are written."""

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
        table = routes(DataSources(self.source))
        runs = await self.source.runs()
        base = self._base
        first = f"{base}run/{quote(runs[0].run_id, safe='')}" if runs else f"{base}rollouts"
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
                text = body.decode()
                for found in _LINK.finditer(text):
                    if _IMAGE.search(found[1]):
                        done += await self._keep_image(
                            table, urljoin(address, html.unescape(found[1]))
                        )
                text = _LINK.sub(lambda found: self._relative(address, found), text)  # noqa: B023
                body = text.encode()
            name = self._names[address]
            assert name is not None
            (self.folder / name).write_bytes(body)
            done += 1
            self.say(done, done + len(self._waiting))
        return done

    async def _keep_image(self, table: list[Route], link: str) -> int:
        """Write an image before the page that leads to it: its kind says how its name ends.

        Returns:
            How many were written: one, or none where it is there, or not in the copy.
        """
        waiting = len(self._waiting)
        self._name_of(link, "")
        if len(self._waiting) == waiting:
            return 0
        address = self._waiting.pop()
        answer = await _answer(table, address, [])
        kind, _, ending = answer.headers["content-type"].partition(";")[0].partition("/")
        name = self._names[address]
        assert name is not None
        if answer.status_code != 200 or kind != "image":
            self.failed.append((address, str(answer.status_code)))
        else:
            self._names[address] = name = f"{name.removesuffix('.txt')}.{ending}"
        (self.folder / name).write_bytes(bytes(answer.body))
        return 1

    @property
    def _base(self) -> str:
        return f"/s/{quote(self.source.key, safe='')}/"

    def _relative(self, page: str, found: re.Match[str]) -> str:
        """A link of a page as it stands in the copy: to a file beside, or to nothing."""
        address, _, mark = urljoin(page, html.unescape(found[1])).partition("#")
        if address.startswith("/static/"):
            return f' href="{urlsplit(address).path.removeprefix("/static/")}"'
        name = self._name_of(address, mark)
        if name is None:
            return " data-left-out"
        return f' href="{name}{"#" if mark else ""}{html.escape(mark)}"'

    def _name_of(self, address: str, mark: str) -> str | None:
        parts = urlsplit(address)
        path = "/".join(quote(unquote(one), safe="") for one in parts.path.split("/"))
        query = {name: value for name, value in parse_qsl(parts.query) if value}
        page, _, which = path.removeprefix(self._base).partition("/")
        if page == "rollouts" and which and "/" not in which:
            of = OF_A_ROLLOUT.get(mark.partition("-")[0], OF_A_ROLLOUT[""])
            is_of_token = {"call", "token"} <= query.keys()
            of = OF_A_ROLLOUT["why"] if is_of_token and mark in ("why", "") else of
            dropped = query.keys() - of
            query = {name: value for name, value in query.items() if name in of}
            if query.get("turn") == "1":  # as it begins
                del query["turn"]
            if dropped & {"colour", "span", "step", "again"}:
                return None
        address = f"{path}{'?' if query else ''}{urlencode(sorted(query.items()))}"
        if address not in self._names:
            self._names[address] = self._chosen(path, query)
            if self._names[address] is not None:
                self._waiting.append(address)
        return self._names[address]

    def _chosen(self, path: str, query: dict[str, str]) -> str | None:
        """The file of an address; None where it is not in the copy."""
        if not path.startswith(self._base):
            return None
        page, _, which = path.removeprefix(self._base).partition("/")
        rollout, _, more = which.partition("/")
        if is_rollout := page == "rollouts" and bool(which):
            if more not in ("", "raw"):
                return None
            if query and self._names.get(f"{self._base}rollouts/{rollout}") is None:
                return None  # more of a rollout that is left out
        elif page not in PAGES or not query.keys() <= PAGES[page]:
            return None
        kind = "tokens" if "token" in query else "others"
        kind = "rollouts" if is_rollout and not query else kind
        most = {"rollouts": self.most_rollouts, "tokens": self.most_tokens, "others": MOST_PAGES}
        if self._num[kind] >= most[kind]:
            self.left_out[kind] += 1
            return None
        self._num[kind] += 1
        name = f"{path.removeprefix(self._base)}{'?' if query else ''}"
        name += urlencode(sorted(query.items()))
        return _file_name(name, ".txt" if more == "raw" else ".html")


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
    path = unquote(parts.path)
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
