"""Write spans into a store by hand: no trainer, no runner, no algorithm.

    python write_traces.py otel              # spans of OpenTelemetry
    python write_traces.py operation         # spans of agl.operation, emitted rewards and messages
    python write_traces.py agentops          # spans of AgentOps: it watches an OpenAI client
    python write_traces.py otel --use-client # into the store of `agl store`, over HTTP

``agentops`` needs ``agl-tracers[agentops]`` and calls the model ``AGENT_MODEL`` at
``OPENAI_BASE_URL``. ``--use-client`` takes an address, too; the store's token is read from
``AGL_SERVER_TOKEN``.
"""

import argparse
import asyncio
import os

import agl

MODES = ("otel", "operation", "agentops")


async def write_traces(mode: str, store: agl.LightningStore) -> list[agl.Span]:
    """One rollout with one attempt; returns its spans, in the order of their numbers."""
    tracer: agl.Tracer = agl.AgentOpsTracer() if mode == "agentops" else agl.OtelTracer()
    rollout = await store.start_rollout(input={"origin": "write_traces.py"})
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    with tracer.lifespan(store):
        async with tracer.trace_context("write-traces", store=store, **ids) as opened:
            if mode == "otel":
                # What the context yields is a tracer of OpenTelemetry.
                with opened.start_as_current_span("outer") as outer:
                    outer.set_attribute("step", 1)
                    with opened.start_as_current_span("inner"):
                        pass
            elif mode == "operation":
                add(1, b=2)
                agl.emit_message("added")
                agl.emit_reward(0.5)
            else:
                await call_model()
                agl.emit_reward(1.0)
    await store.update_attempt(rollout.rollout_id, ids["attempt_id"], status="succeeded")
    return list(await store.query_spans(rollout.rollout_id))


@agl.operation
def add(a: int, b: int) -> int:
    """Its arguments and its result become attributes of a span."""
    return a + b


async def call_model() -> None:
    """An ordinary call: AgentOps makes a span of it."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI() as client:
        await client.chat.completions.create(
            model=os.environ.get("AGENT_MODEL", "gpt-4.1-mini"),
            messages=[{"role": "user", "content": "Say hello."}],
        )


async def main() -> None:
    """Write, and print what was written."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=MODES)
    parser.add_argument(
        "--use-client", nargs="?", const="http://localhost:4747", metavar="URL", dest="url"
    )
    options = parser.parse_args()
    agl.setup_logging()
    store = agl.LightningStoreClient(options.url) if options.url else agl.InMemoryLightningStore()
    try:
        for span in await write_traces(options.mode, store):
            print(f"{span.sequence_id}  {span.name}  {dict(span.attributes)}")
    finally:
        await store.close()


if __name__ == "__main__":
    asyncio.run(main())
