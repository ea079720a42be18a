"""Rollouts a second of runners on a Ray cluster, beside those of ``cs`` with as many runners.

The cluster is one of two nodes on this machine. Each sample is a fresh process that waits until all
runners have claimed for the first time, and then runs trivial rollouts; samples alternate.

    python benchmarks/ray_runners.py --runners 64
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import agl
from agl.cli.shared import print_table

HERE = Path(__file__).resolve()
NODE = {"object_store_memory": 80_000_000, "include_dashboard": False}


@agl.rollout
def agent(task: int) -> float:
    """A trivial agent."""
    return 1.0


def measure(strategy: dict[str, object], runners: int, rollouts: int) -> float:
    """Rollouts a second, once all runners are there."""
    rates = []

    @agl.algo
    async def algorithm(store: agl.LightningStore) -> None:
        while len(await store.query_workers()) < runners:  # noqa: ASYNC110 - a store has no event
            await asyncio.sleep(0.1)
        await asyncio.sleep(1.0)
        requests = [agl.EnqueueRolloutRequest(input=number) for number in range(rollouts)]
        began = time.perf_counter()
        queued = await store.enqueue_many_rollouts(requests)
        ended = await store.wait_for_rollouts(rollout_ids=[one.rollout_id for one in queued])
        rates.append(rollouts / (time.perf_counter() - began))
        assert all(one.status == "succeeded" for one in ended)

    store = agl.InMemoryLightningStore()
    agl.Trainer(algorithm=algorithm, n_runners=runners, strategy=strategy, store=store).fit(agent)
    return rates[0]


def main() -> None:
    """Start a cluster, and measure in turn."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runners", type=int, default=64)
    parser.add_argument("--rollouts", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        rate = measure(json.loads(options.measure), options.runners, options.rollouts)
        print(f"RATE {rate}")
        return
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "num_cpus": 2})
    try:
        cluster.add_node(**NODE, num_cpus=2)
        on_ray = {
            "type": "ray",
            "address": cluster.address,
            "resources": {"cpu": 2 / options.runners},
        }
        rates: dict[str, list[float]] = {"cs": [], "ray": []}
        for _ in range(options.rounds):
            for name, strategy in (("cs", {"type": "cs"}), ("ray", on_ray)):
                command = [sys.executable, str(HERE), "--measure", json.dumps(strategy)]
                command += ["--runners", str(options.runners), "--rollouts", str(options.rollouts)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                (line,) = (one for one in done.stdout.splitlines() if one.startswith("RATE"))
                rates[name].append(float(line.split()[1]))
    finally:
        cluster.shutdown()
    rows = [[name, *(f"{one:.0f}" for one in each)] for name, each in rates.items()]
    print_table(["rollouts/s", *(f"round {n + 1}" for n in range(options.rounds))], rows)
    ratios = [ray / cs for cs, ray in zip(rates["cs"], rates["ray"], strict=True)]
    print(f"ray / cs: {statistics.median(ratios):.2f} (median), {min(ratios):.2f} at least")


if __name__ == "__main__":
    main()
