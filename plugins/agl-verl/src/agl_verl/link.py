"""The line between verl's process and the algorithm's: questions one way, answers back.

It is a Ray actor, since Ray reaches both wherever they run, needs no further port, and knows when
one of them has died. It holds nothing but what is on its way.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from agl.errors import AlgorithmError
from agl_verl.messages import Answer, Message

TAKE_SECONDS = 5.0
"""How long the algorithm waits for questions before it looks whether it is to end."""

Handler = Callable[[Message], Coroutine[Any, Any, Answer]]


class Link:
    """The actor: questions wait here for the algorithm, and callers for answers."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[tuple[int, Message]] = asyncio.Queue()
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._count = 0

    async def ask(self, message: Message) -> Answer:
        """Called by verl's process; returns the answer.

        Raises:
            AlgorithmError: The algorithm could not answer; the message says why.
        """
        self._count += 1
        number = self._count
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        self._waiting.put_nowait((number, message))
        try:
            return await future
        finally:
            del self._answers[number]

    async def take(self) -> list[tuple[int, Message]]:
        """Called by the algorithm: what was asked since, at least one question if there is any."""
        try:
            taken = [await asyncio.wait_for(self._waiting.get(), TAKE_SECONDS)]
        except TimeoutError:
            return []
        while not self._waiting.empty():
            taken.append(self._waiting.get_nowait())
        return taken

    async def answer(self, number: int, answer: Answer, error: str | None) -> None:
        """Called by the algorithm: the answer to a question, or why there is none."""
        future = self._answers.get(number)
        if future is None or future.done():
            return  # who asked has gone
        if error is None:
            future.set_result(answer)
        else:
            future.set_exception(AlgorithmError(error))


def open_link() -> Any:
    """Start the actor; Ray must be connected. Returns its handle."""
    import ray

    remote: Any = ray.remote
    as_actor = remote(num_cpus=0, max_concurrency=10_000)
    return as_actor(Link).remote()


async def serve(link: Any, handler: Handler) -> None:
    """Answer questions until cancelled, each in a task of its own.

    An error of the handler is the answer to its question; verl's process then decides.
    """
    async with asyncio.TaskGroup() as tasks:
        while True:
            for number, message in await link.take.remote():
                tasks.create_task(_answer(link, handler, number, message))


async def _answer(link: Any, handler: Handler, number: int, message: Message) -> None:
    try:
        answer, error = await handler(message), None
    except Exception as failure:
        answer, error = None, f"{type(failure).__name__}: {failure}"
    await link.answer.remote(number, answer, error)
