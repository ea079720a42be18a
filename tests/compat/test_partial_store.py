"""A store of one's own with the methods that 0.3's runner and algorithm need, and no others."""

from typing import Any

import pytest

import agentlightning as agl
from agentlightning.store.base import UNSET


class Some(agl.LightningStore):
    """Hands on what it has to a store in memory; what it has not raises, as in 0.3."""

    def __init__(self) -> None:
        self.inner = agl.InMemoryLightningStore()

    async def start_rollout(
        self, input, mode=None, resources_id=None, config=None, metadata=None, worker_id=None
    ):
        return await self.inner.start_rollout(
            input, mode, resources_id, config, metadata, worker_id
        )

    async def enqueue_rollout(
        self, input, mode=None, resources_id=None, config=None, metadata=None
    ):
        return await self.inner.enqueue_rollout(input, mode, resources_id, config, metadata)

    async def dequeue_rollout(self, worker_id=None):
        return await self.inner.dequeue_rollout(worker_id)

    async def update_attempt(
        self,
        rollout_id,
        attempt_id,
        status=UNSET,
        worker_id=UNSET,
        last_heartbeat_time=UNSET,
        metadata=UNSET,
    ):
        return await self.inner.update_attempt(
            rollout_id, attempt_id, status, worker_id, last_heartbeat_time, metadata
        )

    async def add_span(self, span):
        assert span.sequence_id > 0, "0.3's runner gives each span a number"
        return await self.inner.add_span(span)

    async def get_next_span_sequence_id(self, rollout_id, attempt_id):
        return await self.inner.get_next_span_sequence_id(rollout_id, attempt_id)

    # Names of one's own, as in 0.3, whose runner gives these by position.
    async def get_rollout_by_id(self, which):
        return await self.inner.get_rollout_by_id(which)

    async def get_latest_resources(self):
        return await self.inner.get_latest_resources()

    async def get_resources_by_id(self, which):
        return await self.inner.get_resources_by_id(which)

    async def add_resources(self, named):
        return await self.inner.add_resources(named)

    async def query_spans(self, of, attempt_id=None, **filters):
        return await self.inner.query_spans(of, attempt_id, **filters)

    async def wait_for_rollouts(self, *, rollout_ids, timeout=None):
        return await self.inner.wait_for_rollouts(rollout_ids=rollout_ids, timeout=timeout)


@agl.rollout
async def agent(task: int, llm: agl.LLM) -> float:
    agl.emit_reward(0.1)
    return float(task)


class Each(agl.Algorithm):
    def __init__(self) -> None:
        super().__init__()
        self.rewards: list[float | None] = []

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store = self.get_store()
        await store.add_resources({"llm": agl.LLM(endpoint="http://127.0.0.1:1", model="m")})
        ids = [(await store.enqueue_rollout(task)).rollout_id for task in train_dataset]
        done = await store.wait_for_rollouts(rollout_ids=ids, timeout=60)
        assert [rollout.status for rollout in done] == ["succeeded"] * len(ids)
        self.rewards = [agl.find_final_reward(await store.query_spans(each)) for each in ids]


async def test_a_runner_steps_with_some_of_the_methods() -> None:
    store = Some()
    runner = agl.LitAgentRunner(agl.OtelTracer())
    llm = agl.LLM(endpoint="http://127.0.0.1:1", model="m")
    with runner.run_context(agent=agent, store=store):
        rollout = await runner.step(1, resources={"llm": llm})
    assert rollout.status == "succeeded"
    assert agl.find_final_reward(await store.query_spans(rollout.rollout_id)) == 1.0


@pytest.mark.parametrize(
    "strategy",
    [{"type": "shm", "main_thread": "algorithm"}, {"type": "cs", "server_port": 0}],
    ids=("shm", "cs"),
)
def test_a_trainer_runs_with_some_of_the_methods(strategy: dict[str, Any]) -> None:
    algorithm, about = Each(), {"tracer": agl.OtelTracer(), "strategy": strategy, "n_runners": 1}
    agl.Trainer(algorithm=algorithm, store=Some(), **about).fit(agent, [1, 2])
    assert algorithm.rewards == [1.0, 2.0]


def test_a_store_of_agl_is_one_of_agentlightning() -> None:
    assert isinstance(agl.InMemoryLightningStore(), agl.LightningStore)
    assert not isinstance(Each(), agl.LightningStore)


class Watching(agl.InMemoryLightningStore):
    """Notes what its own methods are asked, and does as its base does."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def enqueue_rollout(self, input, mode=None, resources_id=None, config=None, **more):
        self.asked.append("enqueue_rollout")
        return await super().enqueue_rollout(input, mode, resources_id, config, **more)

    async def dequeue_rollout(self, worker_id=None):
        claimed = await super().dequeue_rollout(worker_id)
        if claimed is not None:
            self.asked.append("dequeue_rollout")
        return claimed

    async def add_span(self, span):
        assert span.sequence_id > 0
        self.asked.append(f"add_span {span.name}")
        return await super().add_span(span)

    async def update_attempt(self, rollout_id, attempt_id, *args, **kwargs):
        if "status" in kwargs:
            self.asked.append(f"update_attempt {kwargs['status']}")
        return await super().update_attempt(rollout_id, attempt_id, *args, **kwargs)


@pytest.mark.parametrize("strategy", ["shm", {"type": "cs", "server_port": 0}])
def test_runners_store_through_what_a_subclass_overrides(strategy: Any) -> None:
    algorithm, store = Each(), Watching()
    resources = {"llm": agl.LLM(endpoint="http://127.0.0.1:9", model="m")}
    about = {"strategy": strategy, "tracer": agl.OtelTracer(), "initial_resources": resources}
    agl.Trainer(algorithm=algorithm, n_runners=1, store=store, **about).fit(agent, [1, 2])
    assert algorithm.rewards == [1.0, 2.0]
    for method in ("enqueue_rollout", "dequeue_rollout", "update_attempt succeeded"):
        assert store.asked.count(method) == 2, store.asked
    assert store.asked.count("add_span agentlightning.annotation") == 4


def test_override_that_no_runner_calls_is_named(caplog: pytest.LogCaptureFixture) -> None:
    class Late(agl.InMemoryLightningStore):
        async def add_otel_span(self, *args, **kwargs):
            return await super().add_otel_span(*args, **kwargs)

    assert "Late.add_otel_span: runners do not call it" in caplog.text
    assert issubclass(Late, agl.LightningStore)
