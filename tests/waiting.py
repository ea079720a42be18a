"""What tests wait for, and ports where they let others listen."""

import asyncio
import socket
from collections.abc import Callable


async def until(condition: Callable[[], object]) -> None:
    """Return when it holds, which others bring about; the test's time is the limit of this."""
    while not condition():  # noqa: ASYNC110 (there is no event for it)
        await asyncio.sleep(0.005)


def free_port() -> int:
    """A port of this machine where nobody listened a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
