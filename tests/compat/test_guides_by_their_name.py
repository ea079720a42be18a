"""The guides' programs, of which tests exist in our own words, by the name that they import."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
GUIDES = (
    "core/test_guides.py",
    "core/test_guides_emitters.py",
    "acceptance/test_guides_roles.py",
    "acceptance/test_guides_plugins.py",
)


@pytest.mark.parametrize("path", GUIDES)
def test_guides_run_when_they_import_agentlightning(path: str, tmp_path: Path) -> None:
    source = (TESTS / path).read_text(encoding="utf-8")
    renamed = source.replace("import agl\n", "import agentlightning as agl\n")
    renamed = re.sub(r"^from agl(\.(?!errors)\w+)", r"from agentlightning\1", renamed, flags=re.M)
    renamed = renamed.replace('"agl.adapter.', '"agentlightning.adapter.')
    renamed = renamed.replace("server_port) == (8, 0)", "server_port) == (8, 4747)")  # as 0.3's
    assert renamed != source
    copy = tmp_path / "test_renamed.py"
    copy.write_text(renamed, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", str(TESTS.parent / "pyproject.toml"),
         "--rootdir", str(tmp_path), "-p", "no:cacheprovider", str(copy)],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-4000:]
    assert re.search(r"\d+ passed", run.stdout)
