"""Distributions made for one test."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import dedent

import pytest

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path, monkeypatch):
    """``install("agl-x", {"x.py": source}, {"agl.algorithms": {"x": "x:X"}})``.

    Real metadata and modules, in a folder on sys.path.
    """
    made: list[str] = []

    def make(
        name: str,
        files: Mapping[str, str],
        entry_points: Mapping[str, Mapping[str, str]],
        *,
        version: str = "1.0",
        requires: Sequence[str] = (),
        extras: Sequence[str] = (),
    ) -> Path:
        folder = tmp_path / f"site-{name}"
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {r}" for r in requires]
        lines += [f"Provides-Extra: {e}" for e in extras]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        sections = [
            "\n".join([f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())])
            for group, entries in entry_points.items()
        ]
        (info / "entry_points.txt").write_text("\n\n".join(sections) + "\n")
        for path, source in files.items():
            (folder / path).write_text(dedent(source))
            made.append(path.removesuffix(".py"))
        monkeypatch.syspath_prepend(folder)
        return folder

    yield make
    for module in made:
        sys.modules.pop(module, None)
