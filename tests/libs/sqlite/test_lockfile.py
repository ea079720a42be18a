import io
import sys
from pathlib import Path
from typing import Any

import pytest

from agl_sqlite import lockfile
from agl_sqlite.lockfile import HeldError, LockFile, is_held


def test_lock_that_is_released_while_another_one_looks_who_has_it_is_taken(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    first = LockFile(path)

    def released_before(given: Any) -> bool:
        monkeypatch.undo()
        first.release()
        return is_held(given)

    monkeypatch.setattr(lockfile, "is_held", released_before)
    second = LockFile(path)
    with pytest.raises(HeldError, match="process"):
        LockFile(path)
    second.release()
    assert not path.exists()


def test_who_holds_a_file_is_seen_without_the_locks_of_posix(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    path.write_text("4711")
    monkeypatch.setitem(sys.modules, "fcntl", None)
    assert not is_held(path)

    class Locked(io.BytesIO):
        def read(self, _: int) -> bytes:
            raise PermissionError("locked by another process, as Windows says it")

    monkeypatch.setattr(Path, "open", lambda *_: Locked())
    assert is_held(path)
