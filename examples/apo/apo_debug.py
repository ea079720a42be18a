"""Three ways to look into an agent: ``python apo_debug.py runner``, ``hook`` or ``trainer``."""

import argparse
import asyncio

from apo_custom_algorithm import QUESTION, apo_rollout

import agl

RESOURCE = agl.PromptTemplate(
    template="You are a helpful assistant. {any_question}", engine="f-string"
)


class DebugHook(agl.Hook):
    """Prints the spans of each rollout when its agent has returned."""

    async def on_trace_end(self, *, agent, runner, tracer, rollout) -> None:  # type: ignore[no-untyped-def]
        """Called by the runner."""
        print("Trace spans collected during the rollout:")
        for span in tracer.get_last_trace():
            print(f"- {span.name}: {dict(span.attributes or {})}")


async def debug_with_runner(*hooks: object) -> None:
    """Run one rollout without trainer and algorithm, and show what the store has of it."""
    runner, store = agl.LitAgentRunner(agl.OtelTracer()), agl.InMemoryLightningStore()
    with runner.run_context(agent=apo_rollout, store=store, hooks=list(hooks)):
        rollout = await runner.step(QUESTION, resources={"main_prompt": RESOURCE})
    print(await store.query_rollouts())
    print(await store.query_spans(rollout.rollout_id))


def debug_with_trainer() -> None:
    """Dry-run the whole loop with the baseline algorithm."""
    trainer = agl.Trainer(n_runners=1, initial_resources={"main_prompt": RESOURCE})
    trainer.dev(apo_rollout, [QUESTION])


def main() -> None:
    """Do one of the three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=["runner", "hook", "trainer"], nargs="?", default="runner")
    mode = parser.parse_args().mode
    agl.setup_logging()
    if mode == "trainer":
        debug_with_trainer()
    else:
        asyncio.run(debug_with_runner(*([DebugHook()] if mode == "hook" else [])))


if __name__ == "__main__":
    main()
