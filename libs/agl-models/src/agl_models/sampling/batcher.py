"""Brings requests from an event loop to the sampler in its thread, and completions back."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Generator
from concurrent.futures import Future, InvalidStateError

from agl_models.sampling.sequences import Completion, Sampled, Sampler, SamplingRequest

Answered = tuple[Completion, str]
"""What was sampled, and the version of the weights that made all of it."""


class Weights:
    """Says who may use the weights: one who changes them, or the sampler; and their version."""

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self.num_wanting = 0
        """How many wait to change them: until then nothing new is to begin."""
        self.sampling_seconds = 0.0
        """How long the sampler has used them, all in all."""
        self._condition = threading.Condition()
        self._is_used = False
        self._has_changed = False

    @contextlib.contextmanager
    def sampling(self) -> Generator[None]:
        """A block in which nobody changes them; who wants to goes first."""
        with self._condition:
            self._condition.wait_for(lambda: not self._is_used and not self.num_wanting)
            self._is_used = True
        begun = time.perf_counter()
        yield from self._until_done()
        self.sampling_seconds += time.perf_counter() - begun

    @contextlib.contextmanager
    def changing(self) -> Generator[None]:
        """A block in which nothing is sampled, and which makes a version, unless ``unchanged``."""
        with self._condition:
            self.num_wanting += 1
            self._condition.wait_for(lambda: not self._is_used)
            self.num_wanting -= 1
            self._is_used = self._has_changed = True
        yield from self._until_done()

    def unchanged(self) -> None:
        """Say in a block of ``changing`` that it changed nothing, so that the version stays."""
        self._has_changed = False

    def _until_done(self) -> Generator[None]:
        try:
            yield
        finally:
            with self._condition:  # who is woken reads the number of what it samples with
                self.version += self._has_changed
                self._is_used = self._has_changed = False
                self._condition.notify_all()


class Batcher:
    """Samples for many requests at once, in a thread of its own.

    A request joins those in progress at the next step. Only when somebody waits to change the
    weights, which are used as long as anything is sampled, those in progress end first.
    """

    def __init__(self, sampler: Sampler, weights: Weights) -> None:
        self._sampler = sampler
        self._weights = weights
        self._condition = threading.Condition()
        self._new: list[tuple[SamplingRequest, Future[Answered]]] = []
        self._futures: dict[Sampled, Future[Answered]] = {}
        """Futures of all that the sampler has; only its thread looks here."""
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="agl-sampler", daemon=True)
        self._thread.start()

    async def submit(self, request: SamplingRequest) -> Answered:
        """Sample one sequence; cancelled, it leaves the batch.

        Raises:
            Exception: Whatever the sampler raised.
        """
        future = Future[Answered]()
        with self._condition:
            self._new.append((request, future))
            self._condition.notify()
        return await asyncio.wrap_future(future)

    async def close(self) -> None:
        """End; requests that still wait are cancelled."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()
        await asyncio.to_thread(self._thread.join)
        for future in [*self._futures.values(), *(future for _, future in self._new)]:
            future.cancel()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._new or self._futures or self._is_closed)
            if self._is_closed:
                return
            with self._weights.sampling():
                try:
                    self._sample(str(self._weights.version))
                except Exception as error:
                    self._sampler.give_up()
                    for future in self._futures.values():
                        _tell(future, error)
                    self._futures.clear()

    def _sample(self, version: str) -> None:
        """Sample until nothing is in progress."""
        while not self._is_closed:
            self._take()
            over = self._sampler.step(may_join=not self._weights.num_wanting)
            for running in over:
                if future := self._futures.pop(running, None):
                    _tell(future, running.error or (running.completion, version))
            if self._sampler.is_idle and (self._weights.num_wanting or not self._futures):
                return

    def _take(self) -> None:
        """Give the sampler what is new, and take back what nobody waits for any more."""
        with self._condition:
            new, self._new = self._new, []
        for request, future in new:
            try:
                self._futures[self._sampler.add(request)] = future
            except Exception as error:  # of this request; the others go on
                _tell(future, error)
        gone = [running for running, future in self._futures.items() if future.cancelled()]
        for running in gone:
            self._sampler.drop(running)
            del self._futures[running]


def _tell(future: Future[Answered], result: Answered | Exception) -> None:
    with contextlib.suppress(InvalidStateError):  # nobody waits for it any more
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
