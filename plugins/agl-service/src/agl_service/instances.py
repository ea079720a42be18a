"""Which servers run in a folder, and which of them may share it."""

import json
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from agl.errors import ConfigError
from agl_http.addresses import is_loopback
from agl_runs.files import write_whole
from agl_runs.folders import hold_folder
from agl_sqlite.lockfile import is_taken


@dataclass(frozen=True)
class Instance:
    """A server that runs."""

    url: str
    host: str
    pid: int
    store: str
    """Digest of the address of its database, which has a password; "" for files."""

    @classmethod
    def here(cls, url: str, store: str) -> "Instance":
        """This process, with a database or ""."""
        digest = store and sha256(store.encode()).hexdigest()
        return cls(url, socket.gethostname(), os.getpid(), digest)

    @property
    def name(self) -> str:
        """Of its files, NAME.json and NAME.lock."""
        return f"server-{self.host}-{self.pid}" if self.store else "server"

    def is_running(self, folder: Path) -> bool:
        """Whether its process lives."""
        return is_taken(folder / f"{self.name}.lock")

    def may_share(self, there: "Instance") -> bool:
        """Whether both reach each other and use one database."""
        hosts = [urlsplit(one.url).hostname or "" for one in (self, there)]
        apart = self.host != there.host and any(map(is_loopback, hosts))
        return self.store == there.store != "" and self.url != there.url and not apart

    def write(self, folder: Path) -> None:
        """Let the others and commands know of it."""
        write_whole(folder / f"{self.name}.json", json.dumps(asdict(self)))


def running_instances(folder: Path) -> list[Instance]:
    """What the servers that run have written of themselves."""
    found: list[Instance] = []
    for file in sorted(folder.glob("server*.json")):
        with suppress(FileNotFoundError, ValueError, TypeError):  # it ends now, or is damaged
            found.append(Instance(**json.loads(file.read_text())))
    return [one for one in found if one.is_running(folder)]


@contextmanager
def join(folder: Path, own: Instance) -> Generator[None]:
    """A block in which a server uses a folder; files of servers that were killed are removed.

    Raises:
        ConfigError: Another one uses it, and cannot share it.
    """
    for there in running_instances(folder):
        if not own.may_share(there):
            raise ConfigError(
                f"a server runs in {folder} already, at {there.url}; end it with "
                f"agl server stop --folder {folder}, say another --folder, or give all servers of "
                "this one the same --store postgresql://..., each an --address of its own"
            )
    with hold_folder(folder, f"{own.name}.lock"):
        for file in folder.glob("server*.json"):
            if not is_taken(lock := file.with_suffix(".lock")):
                file.unlink()
                lock.unlink(missing_ok=True)
        yield
        (folder / f"{own.name}.json").unlink()
