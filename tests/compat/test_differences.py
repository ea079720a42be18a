"""What the page says that differs from 0.3 does."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import agentlightning as agl
from agl.errors import (
    ConfigError,
    InvalidQueryError,
    TracerError,
    UnknownRecordError,
    UnusedDatasetError,
)

pytestmark = pytest.mark.plugins


class Slow(agl.Algorithm):
    def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None: ...


@agl.algo
def without_tasks(*, store: agl.LightningStore) -> None: ...


@agl.rollout
def agent(task: str) -> float:
    return 1.0


def trainer(**options: Any) -> agl.Trainer:
    return agl.Trainer(tracer=agl.OtelTracer(), **options)


def store() -> agl.InMemoryLightningStore:
    return agl.InMemoryLightningStore()


def span_outside() -> None:
    agl.OtelTracer().create_span("outside")


BAD_REWARD: Any = {"a": "b"}
SHM = agl.SharedMemoryExecutionStrategy
Kind = type[Exception]
REFUSED: list[tuple[Kind | tuple[Kind, Kind], Callable[[], Any]]] = [
    (UnknownRecordError, lambda: asyncio.run(store().enqueue_rollout({}, resources_id="none"))),
    (InvalidQueryError, lambda: asyncio.run(store().query_rollouts(limit=0))),
    (AttributeError, lambda: setattr(agl.LLM(endpoint="", model=""), "endpoint", "other")),
    (ConfigError, lambda: agl.InMemoryLightningStore(tracker=object())),
    (ConfigError, lambda: agl.InMemoryLightningStore(eviction_memory_threshold=1)),
    (ConfigError, lambda: agl.InMemoryLightningStore(safe_memory_threshold=1)),
    (ConfigError, lambda: agl.InMemoryLightningStore(span_size_estimator=lambda span: 1)),
    (ConfigError, lambda: agl.LightningStoreServer(store(), n_workers=2)),
    (ConfigError, lambda: agl.LightningStoreServer(store(), launch_mode="mp")),
    (ConfigError, lambda: agl.LightningStoreServer(store(), host="0.0.0.0")),
    (ConfigError, lambda: agl.ClientServerExecutionStrategy(allowed_exit_codes=(0,))),
    (ConfigError, lambda: agl.LitAgentRunner(agl.OtelTracer(), heartbeat_interval=0)),
    (ConfigError, lambda: trainer(strategy=SHM(n_runners=1), n_runners=2)),
    (ConfigError, lambda: agl.PromptTemplate(template="{t.x}", engine="f-string").format(t=1)),
    (ConfigError, lambda: agl.AgentOpsTracer(agentops_managed=False)),
    (ConfigError, lambda: agl.LLMProxy(middlewares=[int])),
    (ConfigError, lambda: agl.LLMProxy(callbacks=[int])),
    (TracerError, span_outside),
    (ValueError, lambda: agl.emit_reward(float("nan"), propagate=False)),
    ((ConfigError, TypeError), lambda: trainer(algorithm=Slow()).dev(agent, ["task"])),
    ((ConfigError, NotImplementedError), lambda: agl.rollout(lambda: 1.0)),
    (UnusedDatasetError, lambda: trainer(algorithm=without_tasks).fit(agent, ["task"])),
    ((ValueError, RuntimeError), lambda: agl.emit_object(object(), propagate=False)),
    (
        (TypeError, ValueError),
        lambda: agl.emit_reward(BAD_REWARD, primary_key="a", propagate=False),
    ),
    (TracerError, lambda: agl.emit_reward(1.0)),
]


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGL_SERVER_TOKEN", raising=False)


@pytest.mark.parametrize(("kinds", "call"), REFUSED)
def test_what_the_page_says_is_an_error_is_one_of_the_kind_that_0_3_raised(kinds, call) -> None:
    with pytest.raises(kinds) as raised:
        call()
    assert all(isinstance(raised.value, kind) for kind in (kinds if type(kinds) is tuple else ()))
    assert len(str(raised.value)) > 30, "the message says what to do"


def test_what_the_page_says_is_taken_is_taken() -> None:
    agl.Baseline(train_split=0.5, polling_interval=1.0)
    agl.ClientServerExecutionStrategy(role="runner", main_process="runner")
    agl.InMemoryLightningStore(scan_debounce_seconds=0.0, thread_safe=True)
    taken = {"middlewares": ["rollout_attempt", "stream_conversion"], "launch_mode": "mp"}
    proxy = agl.LLMProxy(**taken, callbacks=["return_token_ids", "opentelemetry"])
    assert proxy.callbacks == ("return_token_ids",)
    assert agl.ProxyLLM(endpoint="http://x", model="m").get_base_url(1, 2).endswith("attempt/2")  # pyright: ignore[reportArgumentType]


def test_address_of_a_client_is_the_servers() -> None:
    assert agl.LightningStoreClient("http://127.0.0.1:1").server_address == "http://127.0.0.1:1"
