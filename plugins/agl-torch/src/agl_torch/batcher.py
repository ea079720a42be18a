"""Gathers requests that come at nearly the same moment into one batch of the sampler."""

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from agl_torch.generate import Completion, Sampler, SamplingRequest


class Weights:
    """The lock that keeps weights still while a batch is sampled, and their version."""

    def __init__(self, version: int = 0) -> None:
        self.lock = threading.Lock()
        self.version = version


class Answered(NamedTuple):
    """A completion, and the version of the weights that made all of it."""

    completion: "Completion"
    version: str


class _Waiting(NamedTuple):
    request: "SamplingRequest"
    future: asyncio.Future[Answered]


class Batcher:
    """Samples for many requests at once, in a thread of its own. Lives in one event loop.

    After a quiet moment it waits ``window_seconds`` for companions of the first request; while a
    batch is being sampled the next one gathers by itself.

    Args:
        sampler: Does the work.
        weights: Held for the length of a batch.
        window_seconds: How long the first request waits.
        max_batch_size: Sequences in one batch at most.
    """

    def __init__(
        self,
        sampler: "Sampler",
        weights: Weights,
        window_seconds: float = 0.002,
        max_batch_size: int = 64,
    ) -> None:
        self._sampler = sampler
        self._weights = weights
        self._window_seconds = window_seconds
        self._max_batch_size = max_batch_size
        self._waiting: list[_Waiting] = []
        self._wake = asyncio.Event()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="agl-torch-sampler")
        self._task = asyncio.create_task(self._run(), name="agl-torch-batcher")

    async def submit(self, request: "SamplingRequest") -> Answered:
        """Sample one sequence.

        Raises:
            Exception: Whatever the sampler raised for the batch.
        """
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(request, future))
        self._wake.set()
        return await future

    async def close(self) -> None:
        """End; requests that still wait are cancelled."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        for waiting in self._waiting:
            waiting.future.cancel()
        self._executor.shutdown(wait=False)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._waiting:
                self._wake.clear()
                await self._wake.wait()
                await asyncio.sleep(self._window_seconds)
            # Who has hung up in the meantime needs no answer.
            waiting = [one for one in self._waiting if not one.future.done()]
            batch, self._waiting = (
                waiting[: self._max_batch_size],
                waiting[self._max_batch_size :],
            )
            if not batch:
                continue
            try:
                answers = await loop.run_in_executor(
                    self._executor, self._generate, [one.request for one in batch]
                )
            except Exception as error:
                for one in batch:
                    if not one.future.done():
                        one.future.set_exception(error)
                continue
            for one, answer in zip(batch, answers, strict=True):
                if not one.future.done():
                    one.future.set_result(answer)

    def _generate(self, requests: "list[SamplingRequest]") -> list[Answered]:
        with self._weights.lock:
            completions = self._sampler.generate(requests)
            version = str(self._weights.version)
        return [Answered(completion, version) for completion in completions]
