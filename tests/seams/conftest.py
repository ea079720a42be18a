"""For all tests of this folder."""

from collections.abc import Generator
from pathlib import Path

import pytest

from .scene import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Generator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    for process in scene.left():
        process.kill()
