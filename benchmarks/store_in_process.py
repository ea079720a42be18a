"""Rollouts per second of CPU that a store in this process takes, without HTTP.

The life of a rollout: queued, claimed, a batch of spans of about 1 KB, its end, and its spans and
itself read again. Once with a call for each of these, once with one turn for spans and end. Some
rollouts are under way at the same time. Stores are measured in turn, ``--rounds`` times, and the
medians are shown.

    python benchmarks/store_in_process.py --rollouts 1000 --tasks 1
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import agl
from agl.store.base import AttemptEnd
from agl.types import Span

TEXT = "The quick brown fox jumps over the lazy dog. " * 20


def drafts(count: int) -> list[Span]:
    """Spans of about 1 KB, unnumbered; of no attempt yet."""
    return [
        Span.from_attributes(name="step", rollout_id="", attempt_id="", attributes={"text": TEXT})
        for _ in range(count)
    ]


async def live(store: agl.LightningStore, worker_id: str, spans: list[Span], turns: bool) -> None:
    """The life of one rollout."""
    await store.enqueue_rollout({"question": TEXT[:100]}, mode="train")
    rollout = await store.dequeue_rollout(worker_id)
    assert rollout is not None
    rollout_id, attempt_id = rollout.rollout_id, rollout.attempt.attempt_id
    ids = {"rollout_id": rollout_id, "attempt_id": attempt_id}
    own = [span.model_copy(update=ids) for span in spans]
    if turns:
        end = AttemptEnd(rollout_id=rollout_id, attempt_id=attempt_id, status="succeeded")
        await store.turn(own, finish=end, limit=0)
    else:
        await store.add_many_spans(own)
        await store.update_attempt(rollout_id, attempt_id, status="succeeded")
    assert len(await store.query_spans(rollout_id, attempt_id)) == len(spans)
    assert (await store.get_rollout_by_id(rollout_id)) is not None


async def measure(
    store: agl.LightningStore, rollouts: int, tasks: int, num_spans: int, turns: bool
) -> float:
    """Rollouts per second of this process's CPU; other work on the machine does not count."""
    spans = drafts(num_spans)

    async def some(worker_id: str) -> None:
        for _ in range(rollouts // tasks):
            await live(store, worker_id, spans, turns)

    begin = time.process_time()
    await asyncio.gather(*(some(f"worker-{number}") for number in range(tasks)))
    rate = rollouts / (time.process_time() - begin)
    await store.close()
    return rate


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=1, help="rollouts at the same time")
    parser.add_argument("--spans", type=int, default=8, help="to a rollout")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = (Path(folder) / f"{number}.db" for number in range(2 * options.rounds))
        stores: dict[str, Callable[[], agl.LightningStore]] = {
            "memory": agl.InMemoryLightningStore,
            "sqlite file": lambda: agl.SqliteLightningStore(next(files), durability="process"),
        }
        rates: dict[tuple[str, bool], list[float]] = {}
        for _ in range(options.rounds):
            for name, make in stores.items():
                for turns in (False, True):
                    rate = asyncio.run(
                        measure(make(), options.rollouts, options.tasks, options.spans, turns)
                    )
                    rates.setdefault((name, turns), []).append(rate)
    for (name, turns), found in rates.items():
        way = "turn" if turns else "calls"
        print(f"{name:16} {way:6} {statistics.median(found):8.0f} rollouts/s")


if __name__ == "__main__":
    main()
