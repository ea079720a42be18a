"""A provider that runs on this machine, and what is trained there."""

import gc
import warnings

import pytest

from .words import END, WORDS, build_tokenizer


@pytest.fixture(autouse=True)
def _no_key_of_ours(monkeypatch):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)


@pytest.fixture(scope="session")
def tokenizer():
    """Ten words and a chat template."""
    pytest.importorskip("transformers")
    return build_tokenizer()


@pytest.fixture
def service():
    """A local Tinker, running."""
    pytest.importorskip("tinker")
    from .tinker_server import Tinker

    server = Tinker(len(WORDS), WORDS.index(END))
    server.server.start()
    yield server
    server.server.stop()
    # The SDK leaves a connection of each of its clients to the garbage collector.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def tinker(service, tokenizer, tmp_path):
    """Builds a ``Tinker`` for the local service."""
    model = {"base_model": "tiny/table", "tokenizer": tokenizer}
    places = {"api_key": service.key, "base_url": service.server.url}
    sizes = {"learning_rate": 0.5, "iterations": 2, "rollouts_per_task": 8, "max_tokens": 2}
    of_run = {"run_dir": str(tmp_path / "run"), "show_progress": False}

    def build(**options):
        from agl_tinker.algorithm import Tinker

        return Tinker(**{**model, **places, **sizes, **of_run, **options})

    return build
