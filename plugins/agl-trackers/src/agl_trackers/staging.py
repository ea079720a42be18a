"""Checkpoints that wait to be uploaded, kept from being removed by a second name of their files."""

import os
import shutil
import tempfile
from pathlib import Path

MOST = 4
"""That wait at once: each holds its room on the disk until it is uploaded."""


class Staging:
    """Folders beside checkpoints with hard links to their files, which so outlive these."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._folders: dict[Path, None] = {}

    def clean(self, folder: Path) -> None:
        """Remove from a run's folder what an earlier start, which was killed, has left."""
        for left in folder.glob(f"*/.for-{self._name}-*"):
            shutil.rmtree(left, ignore_errors=True)

    def add(self, path: Path) -> Path | None:
        """Keep a file or folder.

        Returns:
            It under its own name elsewhere; itself where the disk has no links; None where too many
            wait already.
        """
        if len(self._folders) >= MOST:
            return None
        try:
            folder = Path(tempfile.mkdtemp(prefix=f".for-{self._name}-", dir=path.parent))
        except OSError:
            return path
        self._folders[folder] = None
        kept = folder / path.name
        try:
            if path.is_dir():
                shutil.copytree(path, kept, symlinks=True, copy_function=os.link)
            else:
                os.link(path, kept)
        except (OSError, shutil.Error):
            self.remove(kept)
            return path
        return kept

    def remove(self, kept: Path | None) -> None:
        """Let go what ``add`` gave."""
        if kept is not None and kept.parent in self._folders:
            shutil.rmtree(kept.parent, ignore_errors=True)
            self._folders.pop(kept.parent, None)

    def clear(self) -> None:
        """Let go all, what is being uploaded as well."""
        for folder in list(self._folders):
            self.remove(folder / "any")
