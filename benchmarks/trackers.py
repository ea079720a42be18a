"""What a tracker costs a run: none, one that works, one that fails, one that hangs.

    python benchmarks/trackers.py [--rounds 15] [--steps 20] [--rollouts 50] [--only fails,hangs]

A run is so many steps of so many rollouts without a model, each of them a call and a reward. Runs
of all kinds alternate in one process, in an order that is drawn anew each round. Printed are
medians of wall time and of processor time (all threads), and the medians of their ratios to the run
without a tracker in the same round, with the quarters around them. ``own`` is what the tracker
itself took of the run's processor time, in hooks and in its thread: no run can be slower for more
than that, and other work on the machine hardly changes it. The end of a run, where a tracker is
waited for, has a column of its own: with a tracker that hangs it is ``wait_seconds`` where the run
was shorter than that, and nothing where it was longer.
"""

import argparse
import asyncio
import functools
import json
import logging
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import Process, Queue
from pathlib import Path
from typing import Any

import agl
import agl_trackers
from agl.semconv import MODEL_CALL_SPAN, ModelCallAttributes as Key

SHM = {"type": "shm", "main_thread": "algorithm"}
ASKED = json.dumps([{"role": "user", "content": "Which room is free at ten? " * 20}])
SAID = json.dumps([{"role": "assistant", "content": "The blue one. " * 20}])


class Steps(agl.Algorithm):
    """So many steps of so many rollouts; knows how long they took, without the run's end."""

    def __init__(self, steps: int, rollouts: int, own: "Own") -> None:
        self.steps, self.rollouts, self._own = steps, rollouts, own
        self._took = (0.0, 0.0, 0.0)

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        """All steps."""
        store = self.get_store()
        began = time.perf_counter(), time.process_time()
        for step in range(1, self.steps + 1):
            prompt = agl.PromptTemplate(template=f"{step}: {{task}}", engine="f-string")
            await self.publish_resources({"prompt": prompt}, f"prompt-{step}")
            queued = [
                await store.enqueue_rollout(str(n), mode="train", metadata={"step": step})
                for n in range(self.rollouts)
            ]
            await store.wait_for_rollouts(rollout_ids=[one.rollout_id for one in queued])
            metrics = {f"area/metric-{n}": step / (n + 1) for n in range(30)}
            await self.tell("on_step_end", step=step, metrics=metrics)
        took = time.perf_counter() - began[0], time.process_time() - began[1]
        self._took = *took, self._own.so_far()


@agl.rollout
def agent(task: str, prompt: agl.PromptTemplate) -> float:
    """A call that nobody made."""
    about = {
        Key.OPERATION: "chat",
        Key.REQUEST_MODEL: "tiny",
        Key.INPUT_MESSAGES: ASKED,
        Key.OUTPUT_MESSAGES: SAID,
        Key.INPUT_TOKENS: 120,
        Key.OUTPUT_TOKENS: 60,
    }
    with agl.operation(name=MODEL_CALL_SPAN, **{key.value: v for key, v in about.items()}):
        return 1.0


class Fails(agl_trackers.Tracker):
    """Opens, and then raises each time."""

    def begin(self, about: agl_trackers.RunAbout) -> None:
        """Opens."""

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Fails."""
        raise ConnectionError("500 Internal Server Error")

    log_rollouts = log_prompt = log_metrics

    def end(self, error: str | None) -> None:
        """Fails."""
        raise ConnectionError("500 Internal Server Error")


class Hangs(Fails):
    """Opens, and does not return from anything else."""

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hangs."""
        threading.Event().wait()

    log_rollouts = log_prompt = log_metrics


def serve(answers: "Queue[int]", status: int | None) -> None:
    """A collector in a process of its own: answers so, or never."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if status is None:
                threading.Event().wait()
            self.send_response(status or 200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    answers.put(server.server_port)
    server.serve_forever()


@contextmanager
def collector(status: int | None) -> Any:
    """Its address, as long as it is served."""
    answers: Queue[int] = Queue()
    process = Process(target=serve, args=(answers, status), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{answers.get(timeout=120)}/v1/traces"
    finally:
        process.kill()
        process.join()


class Own:
    """Processor seconds that a hook takes, in the threads of the run and in its own."""

    def __init__(self, hook: Any) -> None:
        self._hook, self._seconds = hook, 0.0
        during = [name for name in dir(agl.Hook) if name.startswith("on_")]
        for name in {*during, "_read", "_follow"} - {"on_run_start", "on_run_end"}:
            method = getattr(type(hook), name, None)
            if method not in (None, getattr(agl.Hook, name, None)):
                setattr(hook, name, self._counted(getattr(hook, name)))

    def so_far(self) -> float:
        """Since the run began."""
        thread = getattr(getattr(self._hook, "_delivery", None), "_thread", None)
        alive = thread is not None and thread.is_alive()
        clock = time.pthread_getcpuclockid(thread.ident) if alive else None
        return self._seconds + (0.0 if clock is None else time.clock_gettime(clock))

    def _counted(self, method: Any) -> Any:
        if asyncio.iscoroutinefunction(method):

            @functools.wraps(method)
            async def awaited(*args: Any, **named: Any) -> Any:
                return await _Driven(method(*args, **named), self._take)

            return awaited

        @functools.wraps(method)
        def called(*args: Any, **named: Any) -> Any:
            begun = time.thread_time()
            try:
                return method(*args, **named)
            finally:
                self._take(time.thread_time() - begun)

        return called

    def _take(self, seconds: float) -> None:
        self._seconds += seconds


class _Driven:
    """A coroutine whose pieces between two waits are timed."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], take: Callable[[float], None]) -> None:
        self._coroutine, self._take = coroutine, take

    def __await__(self) -> Generator[Any, Any, Any]:
        step, value = self._coroutine.send, None
        while True:
            begun = time.thread_time()
            try:
                waits = step(value)
            except StopIteration as ended:
                return ended.value
            finally:
                self._take(time.thread_time() - begun)
            try:
                step, value = self._coroutine.send, (yield waits)
            except BaseException as error:
                step, value = self._coroutine.throw, error


def measure(hook: object | None, steps: int, rollouts: int, folder: Path) -> tuple[float, ...]:
    """Wall and processor seconds of all steps, those of the hook, and wall seconds of the end."""
    own = Own(hook)
    algorithm = Steps(steps, rollouts, own)
    hooks = [] if hook is None else [hook]
    trainer = agl.Trainer(algorithm=algorithm, strategy=SHM, run_dir=folder, hooks=hooks)
    began = time.perf_counter()
    trainer.fit(agent, ["task"])
    total = time.perf_counter() - began
    asyncio.run(trainer.store.close())
    wall, processor, of_hook = algorithm._took
    return wall, processor, of_hook, total - wall


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rollouts", type=int, default=50)
    parser.add_argument("--only", default="", help="kinds, with commas between; all if left out")
    given = parser.parse_args()
    logging.getLogger("agl").setLevel(logging.ERROR)
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        works, refuses, hangs = (stack.enter_context(collector(s)) for s in (200, 401, None))
        kinds: dict[str, Any] = {
            "none": lambda: None,
            "works: tensorboard": agl_trackers.TensorBoard,
            "fails": lambda: Fails(wait_seconds=1),
            "hangs": lambda: Hangs(wait_seconds=1),
            "works: otlp": lambda: agl_trackers.OTLP(endpoint=works),
            "fails: otlp": lambda: agl_trackers.OTLP(endpoint=refuses, wait_seconds=1),
            "hangs: otlp": lambda: agl_trackers.OTLP(endpoint=hangs, wait_seconds=1),
        }
        only = ["none", *given.only.split(",")] if given.only else list(kinds)
        kinds = {kind: make for kind, make in kinds.items() if kind in only}
        found: dict[str, list[tuple[float, ...]]] = {kind: [] for kind in kinds}
        for number in range(given.rounds + 1):
            for kind in random.sample(list(kinds), len(kinds)):
                with tempfile.TemporaryDirectory() as folder:
                    hook = kinds[kind]()
                    steps = given.steps if number else min(given.steps, 2)
                    took = measure(hook, steps, given.rollouts, Path(folder) / "run")
                if number:  # the first round imports, and warms up
                    found[kind].append(took)
    print(f"{given.rounds} rounds of {given.steps} x {given.rollouts} rollouts")
    print(
        f"{'tracker':20} {'wall s':>7} {'CPU s':>7}  {'wall ratio':22} {'CPU ratio':22}"
        f" {'own %':>6} end"
    )
    for kind, took in found.items():
        walls, processors, owns, ends = zip(*took, strict=True)
        ratios = [
            _spread([one[of] / base[of] for one, base in zip(took, found["none"], strict=True)])
            for of in (0, 1)
        ]
        medians = (statistics.median(walls), statistics.median(processors))
        end = statistics.median(ends)
        own = statistics.median(100 * x / y for x, y in zip(owns, processors, strict=True))
        print(
            f"{kind:20} {medians[0]:7.3f} {medians[1]:7.3f}  {ratios[0]} {ratios[1]} {own:6.2f} "
            f"{end:.2f}"
        )


def _spread(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} ({low:.3f}-{high:.3f})  "


if __name__ == "__main__":
    main()
