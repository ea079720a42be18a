"""Several coroutines at once, of which none goes on when one has failed."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def gather_or_cancel(each: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What each of them gives, in their order.

    Raises:
        Exception: What the first that failed raised; the others have been cancelled, and have
            ended.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in each]
    except BaseExceptionGroup as errors:
        first = errors.exceptions[0]
    else:
        return [task.result() for task in tasks]
    raise first  # here, so that it is not told as one that came while the group was handled
