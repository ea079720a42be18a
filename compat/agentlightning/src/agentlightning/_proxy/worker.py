"""One worker of an LLM proxy with several; see ``workers``."""

import asyncio
import json
import os
import socket
import sys
import time
from typing import Any, TextIO

from agl.errors import ConfigError
from agl_gateway import LLMProxy
from agl_gateway.processes import Processes


async def serve(about: dict[str, Any], out: TextIO) -> None:
    """Serve until the parent says no more; then let calls in flight finish."""
    import agl

    def say(value: dict[str, Any]) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    settings = dict(about["proxy"])
    store = agl.LightningStoreClient(settings.pop("store"))
    added = settings.pop("added")
    shared, own = (socket.socket(about["family"], fileno=n) for n in about["sockets"])
    proxy = LLMProxy(store=store, **settings)
    for entry in added:
        proxy.add_model(entry)
    places = (about["ports"], about["index"], own)
    proxy.processes = Processes(shared, *places, since=time.monotonic())
    await proxy.start()
    say({"value": True})
    while line := await asyncio.to_thread(sys.stdin.readline):
        what, args, named = json.loads(line)
        try:
            value = getattr(proxy, what)
            if callable(value):
                value = value(*args, **named)
            say({"value": await value if asyncio.iscoroutine(value) else value})
        except ConfigError as error:
            say({"refused": str(error)})
    await proxy.stop()
    await store.close()


if __name__ == "__main__":
    # What anybody prints must not stand among the answers.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        asyncio.run(serve(json.loads(sys.stdin.readline()), answers))
