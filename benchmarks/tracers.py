"""What each tracer costs: to import, and per model call of an agent.

    python benchmarks/tracers.py [--calls 200] [TRACER ...]

One process per tracer, one model server in each, which answers by rote. CPU seconds of the process,
so that other work on the machine does not count; what the same calls cost under ``agl.DummyTracer``
(client and server) is taken off. Needs ``openai`` and the extras of agl-tracers.
"""

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from typing import Any

import agl
from agl.plugins.registry import load
from agl_testing.echo_llm import EchoLLM

TRACERS = ("dummy", "otel", "otel-genai", "openinference", "agentops", "weave")
MESSAGES: list[Any] = [{"role": "user", "content": "word " * 200}]


async def measured(name: str, num_calls: int) -> dict[str, float]:
    """Of this process: seconds to begin, milliseconds and spans per call, megabytes."""
    import openai

    began = time.process_time()
    tracer = agl.DummyTracer() if name == "dummy" else load("agl.tracers", name)()
    store = agl.InMemoryLightningStore()
    with tracer.lifespan(), EchoLLM() as llm:
        begin_seconds = time.process_time() - began

        async def calls(number: int) -> int:
            rollout = await store.start_rollout(input="task")
            ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
            async with (
                tracer.trace_context(store=store, **ids),
                openai.AsyncOpenAI(base_url=llm.url, api_key="none") as client,
            ):
                for _ in range(number):
                    await client.chat.completions.create(
                        model="echo", messages=MESSAGES, extra_body={"return_token_ids": True}
                    )
            return len(await store.query_spans(rollout.rollout_id))

        await calls(10)  # what is imported at the first call
        began = time.process_time()
        num_spans = await calls(num_calls)
        used = time.process_time() - began
    return {
        "begin_seconds": begin_seconds,
        "ms_per_call": 1000 * used / num_calls,
        "spans_per_call": num_spans / num_calls,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tracers", nargs="*", default=TRACERS)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3, help="the cheapest is shown")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(asyncio.run(measured(options.one, options.calls))))
        return
    base: dict[str, float] = {}
    print("| tracer | begin, CPU s | per call, CPU ms | spans per call | memory, MB |")
    print("|---|---|---|---|---|")
    for name in ("dummy", *(name for name in options.tracers if name != "dummy")):
        command = [sys.executable, __file__, "--one", name, "--calls", str(options.calls)]
        rounds = [
            json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            for _ in range(options.rounds)
        ]
        found = {key: min(each[key] for each in rounds) for key in rounds[0]}
        base = base or found
        print(
            f"| `{name}` | {found['begin_seconds']:.2f} "
            f"| {found['ms_per_call'] - (base['ms_per_call'] if name != 'dummy' else 0):.2f} "
            f"| {found['spans_per_call']:.0f} | {found['megabytes'] - base['megabytes']:+.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
