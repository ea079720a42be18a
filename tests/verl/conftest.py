"""Tests with the real verl on a CPU: ``nox -s verl-cpu``, and `-- --long` for all trainers."""

import os

import pytest


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="every trainer, estimator and option")


def pytest_configure(config):
    config.addinivalue_line("markers", "long: minutes each; run with --long")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--long"):
        for item in items:
            if "long" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs --long"))


os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")

from agl_verl.testing import make_tiny_model, use_cpu  # noqa: E402

use_cpu()  # before anything imports verl


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))
