"""The real line (store, runner, gateway, adapter) with a provider that runs on this machine."""

import asyncio
import contextlib
import gc
import time
import warnings

import pytest

import agl
from agl_adapters import TraceToChats


class Token:
    """What azure-core takes for an access token."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.expires_on = int(time.time()) + 3600
        self.refresh_on = None


class Login:
    """A credential like those of azure-identity."""

    def __init__(self, token: str) -> None:
        self._token = token

    def get_token(self, *scopes: str, **options: object) -> Token:
        return Token(self._token)


@pytest.fixture(autouse=True)
def _no_keys_of_ours(monkeypatch):
    for name in ("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_AD_TOKEN", "TINKER_API_KEY"):
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

    def build(**options):
        defaults = {
            "endpoint": azure.url,
            "base_deployment": "base",
            "base_model": "gpt-base-2026-01-01",
            "subscription_id": "sub-1",
            "resource_group": "group-1",
            "account_name": "acme",
            "api_key": azure.key,
            "credential": Login(azure.token),
            "management_url": azure.url,
            "poll_seconds": 0.02,
            "iterations": 1,
            "rollouts_per_task": 24,
            "data_filter_ratio": 1.0,
            "min_reward": 1.0,
            "run_dir": str(tmp_path / "run"),
            "show_progress": False,
        }
        from agl_azure.algorithm import AzureSFT

        return AzureSFT(**{**defaults, **options})

    return build


@pytest.fixture
async def line():
    """Runs an algorithm and one runner beside it."""
    from agl.execution.events import ThreadingEvent

    store = agl.InMemoryLightningStore()

    async def run(agent, algorithm, train=None, val=None, adapter=None):
        algorithm.set_store(store)
        algorithm.set_adapter(adapter or TraceToChats())
        algorithm.set_llm_proxy(agl.LLMProxy())
        runner, event = agl.LitAgentRunner(agl.OtelTracer(), grace_seconds=0.1), ThreadingEvent()
        with runner.run_context(agent=agent, store=store):
            running = asyncio.create_task(runner.iter(event=event))
            try:
                await algorithm.run(train, val)
            finally:
                event.set()
                with contextlib.suppress(asyncio.CancelledError):
                    await running
        return algorithm

    run.store = store
    yield run
    await store.close()


WORDS = ["<pad>", "<user>", "<agent>", "<end>", "red", "green", "blue", "one", "two", "three"]
TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<user> ' if m['role'] == 'user' else '<agent> ' }}{{ m['content'] }} <end> "
    "{% endfor %}"
    "{% if add_generation_prompt %}<agent> {% endif %}"
)


@pytest.fixture(scope="session")
def tokenizer():
    """Ten words and a chat template."""
    pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<end>",
        chat_template=TEMPLATE,
    )


@pytest.fixture
def service():
    """A local Tinker, running."""
    pytest.importorskip("tinker")
    from .tinker_server import Tinker

    server = Tinker(len(WORDS), WORDS.index("<end>"))
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

    def build(**options):
        from agl_tinker.algorithm import Tinker

        defaults = {
            "base_model": "tiny/table",
            "tokenizer": tokenizer,
            "api_key": service.key,
            "base_url": service.server.url,
            "learning_rate": 0.5,
            "iterations": 2,
            "rollouts_per_task": 8,
            "max_tokens": 2,
            "eval_every": 100,
            "run_dir": str(tmp_path / "run"),
            "show_progress": False,
        }
        return Tinker(**{**defaults, **options})

    return build
