"""Requests of an event loop and the sampler's thread: who goes leaves the others alone."""

import asyncio
import threading
from types import SimpleNamespace

from agl_models.sampling.batcher import Batcher, Weights
from agl_models.sampling.sequences import Completion, SamplingRequest


class Running(SimpleNamespace):
    __hash__ = object.__hash__


class OneStep:
    """A sampler whose first step, which ends all that have joined, ends when it is told to."""

    def __init__(self):
        self.began, self.goes_on = threading.Event(), threading.Event()
        self.running, self.gave_up = [], False

    @property
    def is_idle(self):
        return not self.running

    def add(self, request):
        self.running.append(Running(completion=Completion(text=request.stop), error=None))
        return self.running[-1]

    def step(self, may_join=True):
        self.began.set()
        assert self.goes_on.wait(5)
        over, self.running = self.running, []
        return over

    def give_up(self):
        self.gave_up = True


async def test_a_request_that_is_cancelled_as_it_ends_disturbs_no_other():
    sampler = OneStep()
    batcher = Batcher(sampler, Weights(3))
    gone = asyncio.create_task(batcher.submit(SamplingRequest([1], 1)))
    await asyncio.to_thread(sampler.began.wait, 5)
    stays = asyncio.create_task(batcher.submit(SamplingRequest([1], 1, stop="here")))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    sampler.goes_on.set()
    completion, version = await stays
    assert (completion.text, version, sampler.gave_up) == ("here", "3", False)
    await batcher.close()


async def test_a_request_that_waits_when_the_batcher_closes_is_cancelled():
    sampler = OneStep()
    batcher = Batcher(sampler, Weights())
    first = asyncio.create_task(batcher.submit(SamplingRequest([1], 1)))
    await asyncio.to_thread(sampler.began.wait, 5)
    waits = asyncio.create_task(batcher.submit(SamplingRequest([1], 1)))
    closing = asyncio.create_task(batcher.close())
    await asyncio.sleep(0)
    sampler.goes_on.set()
    await asyncio.wait([closing, first, waits], timeout=5)
    assert (first.cancelled(), waits.cancelled()) == (False, True)
