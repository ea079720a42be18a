"""The pages that follow a rollout and a reward name files that exist, each once on the way down."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted((REPOSITORY / "docs" / "explanation").glob("follow-*.md"))


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_no_file_is_met_twice_on_the_way_down(page: Path) -> None:
    files = re.findall(r"^\| `([^`]+)` \|", page.read_text(), re.M)
    assert len(files) > 10
    assert len(files) == len(set(files))
    for file in files:
        base = REPOSITORY if file.startswith(("libs/", "plugins/")) else REPOSITORY / "core/src/agl"
        assert (base / file).exists(), file
