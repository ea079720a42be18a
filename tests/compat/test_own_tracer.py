"""A tracer of one's own that keeps the fields of spans, and writes none."""

import time
from contextlib import asynccontextmanager
from typing import Any

import agentlightning as agl


class Keeping(agl.Tracer):
    def __init__(self) -> None:
        super().__init__()
        self.kept: list[agl.SpanCoreFields] = []

    @asynccontextmanager
    async def trace_context(self, name=None, **options: Any):
        agl.set_active_tracer(self)
        try:
            yield self
        finally:
            agl.clear_active_tracer()

    def get_last_trace(self):
        return self.kept

    def create_span(self, name, attributes=None, timestamp=None, status=None):
        now = time.time()
        status = status or agl.TraceStatus(status_code="OK")
        fields = agl.SpanCoreFields(
            name=name, attributes=attributes or {}, status=status, start_time=now, end_time=now
        )
        self.kept.append(fields)
        return fields


@agl.rollout
def agent(task: int) -> float:
    agl.emit_message("on the way")
    return 0.25


async def test_a_rollout_succeeds_under_a_tracer_that_gives_fields_of_spans() -> None:
    store, tracer = agl.InMemoryLightningStore(), Keeping()
    runner = agl.LitAgentRunner(tracer)
    with runner.run_context(agent=agent, store=store):
        rollout = await runner.step(1)
    assert rollout.status == "succeeded"
    assert agl.find_final_reward(await store.query_spans(rollout.rollout_id)) == 0.25
    assert [fields.name for fields in tracer.kept] == ["agentlightning.message"]
