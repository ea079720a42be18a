"""Forty rollouts of which one is poisonous; run as a script it prints what came of them.

    python poison.py POISON STRATEGY STORE FOLDER

The others begin before the poison works, and end after it: each says with a file in FOLDER that it
runs, and the poisonous one waits for all of them.
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import agl
from agl.errors import StoreError

NUM = 40
PATIENCE_SECONDS = 60.0
BROKEN_OFF = json.loads('"half an emoji: \\ud83d"')
"""As a model writes tool arguments that end within a character."""


class Mute(Exception):
    """An exception that has no text."""

    def __str__(self) -> str:
        raise RuntimeError("str fails")

    __repr__ = __str__


@dataclass(frozen=True)
class Frozen(Exception):
    """An exception of which nothing can be set."""

    code: int = 3


def _raise(error: BaseException) -> None:
    raise error


def _attribute(value: Any) -> None:
    from opentelemetry import trace

    with trace.get_tracer("a library").start_as_current_span("its span") as span:
        span.set_attribute("value", value)


def _span_name() -> None:
    from opentelemetry import trace

    with trace.get_tracer("a library").start_as_current_span(BROKEN_OFF):
        pass


def _span(name: str, attributes: Any, **fields: Any) -> list[agl.Span]:
    return [agl.Span.from_attributes(name=name, attributes=attributes, **fields)]


async def _stop_loop_from_thread() -> None:
    # Without the agent's context, so that nobody can tell whose doing it is.
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(lambda: threading.Thread(target=_stop, args=(loop,)).start())
    await asyncio.sleep(0.1)


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon_threadsafe(loop.stop)


async def _close_loop() -> None:
    asyncio.get_running_loop().close()


async def _break_loop() -> None:
    asyncio.get_running_loop()._selector.close()  # type: ignore[attr-defined]
    await asyncio.sleep(30)


async def _exit_in_task() -> None:
    async def leave() -> None:
        sys.exit(3)

    await asyncio.create_task(leave())


@dataclass(frozen=True)
class Poison:
    """What a rollout does, and what shall come of it."""

    does: Callable[[], Any]
    boundary: str | None
    """Of its failure; None where it shall succeed all the same."""
    says: str = ""
    """In the failure's type or message."""
    plain: bool = False
    """The agent is a plain function."""
    takes_others: bool = False
    """The others share something that it destroys; they get further attempts."""
    timeout_seconds: float | None = None
    reward: float | None = 1.0
    """Of the poisonous rollout, where it succeeds."""


POISONS: dict[str, Poison] = {
    # texts that UTF-8 cannot hold
    "surrogate in an error": Poison(
        lambda: _raise(ValueError(BROKEN_OFF)), "agent", "half an emoji: \ufffd"
    ),
    "surrogate in a message": Poison(lambda: agl.emit_message(BROKEN_OFF), None),
    "surrogate in an object": Poison(lambda: agl.emit_object({"text": BROKEN_OFF}), None),
    "surrogate in an attribute": Poison(lambda: _attribute(BROKEN_OFF), None),
    "surrogate in a span's name": Poison(_span_name, None),
    "surrogate in a result": Poison(
        lambda: _span(BROKEN_OFF, {BROKEN_OFF: BROKEN_OFF}), None, reward=None
    ),
    # numbers that JSON does not know
    "attribute that is not a number": Poison(lambda: _attribute(float("nan")), None),
    "infinite attributes": Poison(lambda: _attribute([1.0, float("inf")]), None),
    "result that is not a number": Poison(lambda: float("nan"), "agent", "finite number"),
    # sizes and texts
    "span over the limit": Poison(
        lambda: _attribute("x" * 70_000_000), "store", "413 BodyTooLarge"
    ),
    "span that no store keeps": Poison(
        lambda: _span("a", {}, span_id="a\0b"), "store", "InvalidRecordError"
    ),
    "error without a text": Poison(lambda: _raise(Mute()), "agent", "its text cannot be made"),
    "error of 80 MB": Poison(
        lambda: _raise(ValueError("x" * 80_000_000)), "agent", "characters left out"
    ),
    "error in one long word": Poison(
        lambda: _raise(ValueError("x" * 60_000)), "agent", "xxxxxxxxxx", plain=True
    ),
    "error that is frozen": Poison(lambda: _raise(Frozen()), "agent", "Frozen(code=3)"),
    # what ends a process elsewhere
    "KeyboardInterrupt": Poison(lambda: _raise(KeyboardInterrupt()), "agent", "KeyboardInterrupt"),
    "KeyboardInterrupt in a function": Poison(
        lambda: _raise(KeyboardInterrupt()), "agent", "KeyboardInterrupt", plain=True
    ),
    "SystemExit": Poison(lambda: sys.exit(5), "agent", "SystemExit"),
    "SystemExit in a function": Poison(lambda: sys.exit(5), "agent", "SystemExit", plain=True),
    "SystemExit in a task": Poison(_exit_in_task, "agent", "SystemExit"),
    "store error of its own": Poison(
        lambda: _raise(StoreError("of another store")), "agent", "of another store"
    ),
    # the event loop that coroutines share
    "loop stopped from a thread": Poison(_stop_loop_from_thread, None),
    "loop closed": Poison(_close_loop, "agent", "Cannot close a running event loop"),
    "loop broken": Poison(_break_loop, "lost", "broke their event loop", takes_others=True),
    "loop blocked until the deadline": Poison(
        lambda: time.sleep(PATIENCE_SECONDS),
        "timeout",
        "ran longer than timeout_seconds=",
        takes_others=True,
        timeout_seconds=4.0,
    ),
    # its process
    "exit": Poison(lambda: os._exit(0), "lost", "died", takes_others=True),
}
"""Name -> poison. Nothing of the others may be lost, whatever it is."""
ONLY_PROCESSES = {"exit", "span over the limit"}
"""Under ``shm`` the one would end the test, and there is no limit to the other."""


def agent_of(name: str, folder: Path) -> agl.LitAgent[Any]:
    """An agent of which task 0 is poisonous."""
    poison = POISONS[name]

    def is_awaited(task: int) -> bool:
        (folder / f"runs-{task}").touch()
        struck = (folder / "struck").exists()
        if task or struck:
            return not struck
        return sum(path.name.startswith("runs-") for path in folder.iterdir()) < NUM

    def strike(task: int) -> Any:
        if task:
            return None
        (folder / "struck").touch()
        return poison.does()

    if poison.plain:

        @agl.rollout
        def plain(task: int) -> Any:
            while is_awaited(task):
                time.sleep(0.02)
            result = strike(task)
            time.sleep(0.3)
            return 1.0 if result is None else result

        return plain

    @agl.rollout
    async def coroutine(task: int) -> Any:
        agl.emit_message("begins")
        tracer = agl.get_active_tracer()
        # Spans are written within a tenth of a second; what is stored has a number.
        while is_awaited(task) or not all(one.sequence_id for one in tracer.get_last_trace()):  # noqa: ASYNC110 (files of other processes)
            await asyncio.sleep(0.02)
        result = strike(task)
        if asyncio.iscoroutine(result):
            result = await result
        await asyncio.sleep(0.3)
        return 1.0 if not isinstance(result, list | float) else result

    return coroutine


def run(name: str, strategy: str, store: str, folder: Path) -> list[dict[str, Any]]:
    """What came of each of the forty rollouts, the poisonous one first."""
    poison = POISONS[name]
    if poison.timeout_seconds is None:
        return _run(name, strategy, store, folder, None)
    # On a busy machine the last of the forty may begin when the first has waited too long for it.
    for factor in (1, 4):
        (tried := folder / f"deadline-{factor}").mkdir()
        found = _run(name, strategy, store, tried, poison.timeout_seconds * factor)
        if all(one["first_boundary"] != "timeout" for one in found[1:]):
            break
    return found


def _run(name, strategy, store, folder, timeout_seconds) -> list[dict[str, Any]]:
    poison, found = POISONS[name], list[dict[str, Any]]()

    @agl.algo
    async def algorithm(store: agl.LightningStore) -> None:
        again = agl.RolloutConfig(
            max_attempts=3 if poison.takes_others else 1,
            retry_condition=["failed", "unresponsive", "timeout"],
            timeout_seconds=timeout_seconds,
        )
        once = agl.RolloutConfig(timeout_seconds=timeout_seconds)
        asked = [
            agl.EnqueueRolloutRequest(input=n, config=again if n else once) for n in range(NUM)
        ]
        rollouts = await store.enqueue_many_rollouts(asked)
        ids = [rollout.rollout_id for rollout in rollouts]
        await store.wait_for_rollouts(rollout_ids=ids, timeout=PATIENCE_SECONDS)
        for rollout in rollouts:
            ended = await store.get_rollout_by_id(rollout.rollout_id)
            attempts = await store.query_attempts(rollout.rollout_id)
            spans = await store.query_spans(rollout.rollout_id, "latest")
            error = attempts[-1].error if attempts else None
            found.append(
                {
                    "status": ended.status if ended else None,
                    "boundary": error and error.boundary,
                    "reason": error and f"{error.type}: {error.message}",
                    "first_boundary": attempts and attempts[0].error and attempts[0].error.boundary,
                    "reward": agl.find_final_reward(spans),
                    "num_spans": len(spans),
                }
            )

    is_memory, n_runners = store == "memory", 1 if strategy == "shm" else 2
    kept = agl.InMemoryLightningStore() if is_memory else agl.SqliteLightningStore(folder / "s.db")
    options = {"graceful_timeout": 1.0, "terminate_timeout": 1.0, "server_port": 0}
    options = {"graceful_delay": 0.5} if strategy == "shm" else options
    about = {"strategy": {"type": strategy, **options}, "n_runners": n_runners, "store": kept}
    trainer = agl.Trainer(algorithm=algorithm, concurrency=NUM // n_runners, **about)
    trainer.fit(agent_of(name, folder))
    return found


if __name__ == "__main__":
    agl.setup_logging("WARNING")
    print("FOUND", json.dumps(run(*sys.argv[1:4], Path(sys.argv[4]))))
