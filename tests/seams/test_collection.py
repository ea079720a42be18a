"""Each worker of pytest-xdist collects the tests by itself, and all must find the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = """
import json, os

def pytest_collection_finish(session):
    found = []
    for item in session.items:
        params = getattr(item, "callspec", None) and item.callspec.params or {}
        found.append([item.nodeid, [repr(v) for v in params.values() if type(v) in (str, bytes)]])
    with open(os.environ["FOUND"], "w") as file:
        json.dump(found, file)
"""


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_tests_have_the_same_names_and_texts_whenever_they_are_collected(tmp_path: Path) -> None:
    """The texts too: pytest makes names of them, and newer ones shorten those that are long."""
    (tmp_path / "noting.py").write_text(PLUGIN)
    found = []
    for seed in ("1", "2"):
        file = tmp_path / seed
        env = {**os.environ, "PYTHONPATH": str(tmp_path), "FOUND": str(file)}
        subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "noting", "-p", "no:xdist", "--collect-only",
             "-q", "-m", "nightly or not nightly", "tests"],
            cwd=Path(__file__).parents[2], env={**env, "PYTHONHASHSEED": seed}, check=True,
            capture_output=True,
        )  # fmt: skip
        found.append(json.loads(file.read_text()))
    first, second = found
    assert len(first) > 5000
    assert [a for a, b in zip(first, second, strict=True) if a != b] == []
