"""Tokens in the hands of a runner: its own, and those of the attempts that it has claimed."""

import asyncio
import os
import tempfile
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path

from agl.errors import ConfigError, StoreUnavailableError
from agl_http.tokens import model_token

MAX_KNOWN = 10_000
MOST_SHOWN = 200
"""Tokens in the head of one request; a server takes 64 KiB of it, and ids may be long."""
LOOK_SECONDS, WAIT_SECONDS = 0.01, 60.0


class TokenSlot:
    """A place from which processes that were forked earlier read a token that is made later.

    So a process has the token in its memory only once it has read it, and what it forked before
    that never does.

    Args:
        path: A file that other processes of this user find, too, of mode 0600 in a folder of mode
            0700; None for a place that only forked processes have.

    Raises:
        ConfigError: The folder is somebody else's.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        if path is None:
            self._file = tempfile.TemporaryFile(prefix="agl-", buffering=0)  # noqa: SIM115
            return
        path.parent.mkdir(mode=0o700, exist_ok=True)
        folder = path.parent.lstat()
        if (folder.st_uid, folder.st_mode & 0o77) != (os.getuid(), 0):
            raise ConfigError(f"{path.parent}: others can write there; remove it, or set TMPDIR")

    def put(self, token: str) -> None:
        if self._path is None:
            os.pwrite(self._file.fileno(), token.encode(), 0)
            return
        new = self._path.with_suffix(".new")
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(token)
        new.rename(self._path)

    def look(self) -> str:
        """The token, or an empty text."""
        if self._path is None:
            return os.pread(self._file.fileno(), 4096, 0).decode()
        return self._path.read_text() if self._path.exists() else ""

    async def wait(self) -> str:
        """The token, once it is there.

        Raises:
            StoreUnavailableError: Nobody has left one in time.
        """
        end = time.monotonic() + WAIT_SECONDS
        while not (token := self.look()):
            if time.monotonic() > end:
                raise StoreUnavailableError(
                    f"no store server on this machine has left a token for {WAIT_SECONDS:g} s; "
                    "start the algorithm, or set AGL_SERVER_TOKEN here and there to the same text"
                )
            await asyncio.sleep(LOOK_SECONDS)
        return token

    def clear(self) -> None:
        """Take the token away from others, and let go of it in this process."""
        if self._path is None:
            self._file.close()
        else:
            self._path.unlink(missing_ok=True)


def slot_of_server(url: str) -> TokenSlot:
    """Where a server on this machine leaves its token for other processes of this user."""
    folder = Path(tempfile.gettempdir()) / f"agl-tokens-{os.getuid()}"
    return TokenSlot(folder / blake2b(url.encode(), digest_size=8).hexdigest())


class ClaimTokens:
    """The tokens that came with the claims of who has the token ``own``."""

    def __init__(self, own: str | TokenSlot | None) -> None:
        self._own = own
        self._of: OrderedDict[str, dict[str, str]] = OrderedDict()
        """Rollout id -> attempt id -> token of role ``attempt``."""

    def note(self, rollout_id: str, attempt_id: str, token: str | None) -> None:
        """Remember that of a claim; the oldest are forgotten."""
        if token:
            self._of.setdefault(rollout_id, {})[attempt_id] = token
            if len(self._of) > MAX_KNOWN:
                self._of.popitem(last=False)

    def of(self, rollout_ids: Iterable[str]) -> list[str]:
        """Those of all known attempts of these rollouts, for a runner to show; others need none."""
        own = self._own.look() if isinstance(self._own, TokenSlot) else self._own
        if not own or not own.startswith("runner."):
            return []
        known = [rollout_id for rollout_id in set(rollout_ids) if rollout_id in self._of]
        for rollout_id in known:  # what is in use is not forgotten
            self._of.move_to_end(rollout_id)
        return [token for rollout_id in known for token in self._of[rollout_id].values()]

    def portions(self, rollout_ids: Iterable[str]) -> Iterator[tuple[set[str], list[str]]]:
        """The rollouts of each request for which one would show too many tokens; and these."""
        ids, tokens = set[str](), list[str]()
        for rollout_id in dict.fromkeys(rollout_ids):
            own = self.of([rollout_id])
            if len(tokens) + len(own) > MOST_SHOWN and ids:
                yield ids, tokens
                ids, tokens = set[str](), list[str]()
            ids.add(rollout_id)
            tokens += own
        yield ids, tokens

    def model_token(self, rollout_id: str, attempt_id: str) -> str | None:
        """The token for model calls of an attempt, if it was claimed here."""
        token = self._of.get(rollout_id, {}).get(attempt_id)
        return token and model_token(token)
