"""The examples are scripts: each test imports those of one folder, as they are."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("openai")
pytest.importorskip("agl_gateway")
sys.path.insert(0, str(Path(__file__).parent))

from example_bench import EXAMPLES

# The Agents SDK would look for a key and an address to send its traces to.
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Scripts start many processes, and some train: on a busy machine that takes its time."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(3600))


@pytest.fixture
def use_example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Put a folder of examples on the path; modules of other folders are forgotten first."""

    def use(name: str) -> Path:
        for module, loaded in list(sys.modules.items()):
            if str(getattr(loaded, "__file__", None) or "").startswith(str(EXAMPLES)):
                monkeypatch.delitem(sys.modules, module)
        monkeypatch.syspath_prepend(EXAMPLES / name)
        return EXAMPLES / name

    return use


@pytest.fixture(autouse=True)
def on_path(request, use_example, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example whose ``FOLDER`` a file of tests names, with the data that it makes itself."""
    for name in ("RAG_DATA_DIR", "SEARCH_R1_DATA_DIR", "VERL_SPIDER_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    if (folder := getattr(request.module, "FOLDER", None)) is not None:
        use_example(folder.name)
