"""What a folder holds, to compare it with itself or another."""

import hashlib
from pathlib import Path


def digests(folder: Path) -> dict[str, str]:
    """Of every file under a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }
