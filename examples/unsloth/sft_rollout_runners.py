"""The runners' processes: each claims rollouts from the store and runs the agent.

python sft_rollout_runners.py --runners 4     # ends with Ctrl+C
"""

import argparse
import asyncio
import contextlib
import multiprocessing

from math_agent import math_agent

import agl


def run_rollouts(url: str, worker_id: int) -> None:
    """One runner. The gateway records the model calls, so OpenTelemetry's tracer is enough."""

    async def iterate() -> None:
        store = agl.LightningStoreClient(url)
        runner = agl.LitAgentRunner(agl.OtelTracer(), concurrency=16)
        try:
            with runner.run_context(agent=math_agent, store=store, worker_id=worker_id):
                await runner.iter()
        finally:
            await store.close()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(iterate())


def main() -> None:
    """Start them, and wait."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runners", type=int, default=4)
    parser.add_argument("--url", default="http://127.0.0.1:4747", help="of the store")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    runners = [
        context.Process(target=run_rollouts, args=(options.url, worker_id), daemon=True)
        for worker_id in range(options.runners)
    ]
    for runner in runners:
        runner.start()
    with contextlib.suppress(KeyboardInterrupt):
        for runner in runners:
            runner.join()


if __name__ == "__main__":
    main()
