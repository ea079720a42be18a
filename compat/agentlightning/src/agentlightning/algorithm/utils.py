"""What algorithms share."""

import contextlib
import functools
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from agl import Algorithm, Dataset


def with_store(func: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Give a coroutine method of an algorithm its store, as the first argument after ``self``."""

    @functools.wraps(func)
    async def method(self: Algorithm, *args: Any, **kwargs: Any) -> Any:
        return await func(self, self.get_store(), *args, **kwargs)

    return method


def with_llm_proxy(
    required: bool = False, auto_start: bool = True
) -> Callable[[Callable[..., Awaitable[Any]]], Callable[..., Awaitable[Any]]]:
    """Give a coroutine method of an algorithm its proxy, as the first argument after ``self``.

    Args:
        required: Without a proxy the method raises a ValueError; else it gets None.
        auto_start: Start one that does not run, and stop it again after the call.
    """

    def decorate(func: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(func)
        async def method(self: Algorithm, *args: Any, **kwargs: Any) -> Any:
            proxy = self.get_llm_proxy()
            if proxy is None and required:
                raise ValueError(
                    f"{type(self).__name__} needs an LLM proxy; pass Trainer(llm_proxy=...)"
                )
            async with contextlib.AsyncExitStack() as stack:
                if proxy is not None and auto_start and not proxy.is_running():
                    await proxy.start()
                    stack.push_async_callback(proxy.stop)
                return await func(self, proxy, *args, **kwargs)

        return method

    return decorate


def batch_iter_over_dataset(dataset: Dataset[Any], batch_size: int) -> Iterator[Sequence[Any]]:
    """Batches without end: the dataset is shuffled anew whenever all of it was given.

    A batch holds the whole dataset where that is no larger than ``batch_size``.
    """
    while True:
        order = random.sample(range(len(dataset)), len(dataset))
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            if len(batch) == min(batch_size, len(order)):
                yield [dataset[index] for index in batch]
