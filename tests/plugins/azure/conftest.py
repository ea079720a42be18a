"""A provider that runs on this machine, and what is trained there."""

import pytest

from .azure_server import Login


@pytest.fixture(autouse=True)
def _no_keys_of_ours(monkeypatch):
    for name in ("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_AD_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def azure():
    """A local Azure, running."""
    pytest.importorskip("openai")
    pytest.importorskip("azure.mgmt.cognitiveservices")
    from .azure_server import Azure

    server = Azure()
    server.server.start()
    yield server
    server.server.stop()


@pytest.fixture
def sft(azure, tmp_path):
    """Builds an ``AzureSFT`` for the local Azure."""
    sizes = {"iterations": 1, "rollouts_per_task": 24, "min_reward": 1.0}
    of_run = {"run_dir": str(tmp_path / "run"), "show_progress": False}
    given = {**azure.options(), "credential": Login(azure.token), **sizes, **of_run}

    def build(**options):
        from agl_azure.algorithm import AzureSFT

        return AzureSFT(**{**given, **options})

    return build
