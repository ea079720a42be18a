"""Tests with the real verl on a CPU: ``nox -s verl-cpu``, and `-- --long` for all trainers."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for what several test files share
pytest.register_assert_rewrite("running")


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="every trainer, estimator and option")


def pytest_configure(config):
    config.addinivalue_line("markers", "long: minutes each; run with --long")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--long", default=False):
        for item in items:
            if item.path.is_relative_to(HERE) and "long" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs --long"))


os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")

if find_spec("verl") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from verl_cpu import use_cpu

    use_cpu()  # before anything imports verl


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    from ascii_model import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("tiny"))
