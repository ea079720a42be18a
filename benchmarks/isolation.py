"""What ``isolation: process`` costs an attempt: the same trivial agent with it and without.

``python benchmarks/isolation.py [--attempts 100] [--rounds 5]`` prints for each round how many
milliseconds an attempt takes: of wall clock, and of CPU of all processes. The two kinds take turns,
so that what else the machine does falls on both.
"""

import argparse
import asyncio
import resource
import statistics
import time
from typing import Any

import agl


@agl.rollout
def agent(task: int) -> float:
    """Do nothing, and say how well."""
    return 1.0


class Bench:
    """A runner that is started once, as in a run.

    Args:
        isolation: As ``LitAgentRunner`` takes it.
    """

    def __init__(self, isolation: Any) -> None:
        self.store = agl.InMemoryLightningStore()
        self.runner = agl.LitAgentRunner(agl.OtelTracer(), isolation=isolation)

    async def measure(self, num_attempts: int) -> tuple[float, float]:
        """Milliseconds of wall clock and of CPU for each attempt."""
        for number in range(num_attempts):
            await self.store.enqueue_rollout(number)
        self.runner.max_rollouts = num_attempts
        cpu, began = _cpu_seconds(), time.perf_counter()
        await self.runner.iter()
        wall = time.perf_counter() - began
        return 1000 * wall / num_attempts, 1000 * (_cpu_seconds() - cpu) / num_attempts


def _cpu_seconds() -> float:
    """Of this process and all that it started, which psutil sees and those that have ended."""
    import psutil

    family = psutil.Process().children(recursive=True)
    own = resource.getrusage(resource.RUSAGE_SELF)
    total = own.ru_utime + own.ru_stime
    for process in family:
        times = process.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
    return total


async def main() -> None:
    """Measure both, in turns."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--attempts", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    results: dict[str, list[tuple[float, float]]] = {"none": [], "process": []}
    benches = {name: Bench(name) for name in results}
    contexts = [b.runner.run_context(agent=agent, store=b.store) for b in benches.values()]
    with contexts[0], contexts[1]:
        for bench in benches.values():
            await bench.measure(5)  # start the wall, load what is loaded at first use
        for _ in range(options.rounds):
            for name, bench in benches.items():
                results[name].append(await bench.measure(options.attempts))
    for name, rounds in results.items():
        for what, values in zip(("wall", "CPU"), zip(*rounds, strict=True), strict=True):
            shown = " ".join(f"{value:6.2f}" for value in values)
            median = statistics.median(values)
            print(f"{name:8} {what:4} ms an attempt: {shown}   median {median:.2f}")


if __name__ == "__main__":
    asyncio.run(main())
