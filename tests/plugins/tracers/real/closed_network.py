"""Agents of three libraries under one tracer, in a process that notes what tries to leave.

    python closed_network.py TRACER

Prints JSON: the agents' answers, and every look-up, connection and datagram to another machine,
those of exit handlers and threads included. Whatever tries gets an error, as without a network.
"""

import asyncio
import atexit
import json
import os
import sys
from importlib.util import find_spec
from typing import Any

LOCAL = (None, "", "127.0.0.1", "localhost", "::1", "0.0.0.0")
KEYS = ("AGENTOPS_API_KEY", "ANTHROPIC_API_KEY", "LANGSMITH_API_KEY", "OPENAI_API_KEY")
left: list[str] = []
answers: dict[str, str] = {}


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse what goes to another machine."""
    if event in ("socket.getaddrinfo", "socket.gethostbyname"):
        target = arguments[0]
        host = target.decode() if isinstance(target, bytes) else target
    elif event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        target = arguments[1]
        host = target[0] if isinstance(target, tuple) else None
    else:
        return
    if host not in LOCAL:
        left.append(f"{event} {target}")
        raise OSError(f"the network is closed in this process: {event} {target}")


def report() -> None:
    """Registered first, and so run last of all exit handlers."""
    print(json.dumps({"answers": answers, "left": left}), flush=True)


async def run(name: str) -> None:
    """OpenAI's client, and its Agents SDK and LangChain where they are; imported last."""
    from frameworks import FRAMEWORKS
    from scene import reply

    import agl
    from agl.plugins.registry import load
    from agl_testing.echo_llm import EchoLLM

    store = agl.InMemoryLightningStore()
    tracer = load("agl.tracers", name)()
    with tracer.lifespan(), EchoLLM(reply) as llm:
        agents = {
            "openai": FRAMEWORKS["OpenAI SDK, chat"],
            "agents": FRAMEWORKS["OpenAI Agents SDK, chat"],
            "langchain_openai": FRAMEWORKS["LangChain agent"],
        }
        for module, agent in agents.items():
            if find_spec(module) is None:
                continue
            rollout = await store.start_rollout(input="task")
            ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
            async with tracer.trace_context(store=store, **ids):
                answers[module] = await agent.load()(llm.url)
                agl.emit_reward(1.0)


if __name__ == "__main__":
    atexit.register(report)
    os.environ.update(dict.fromkeys(KEYS, "sk-must-not-leave"))
    os.environ["WANDB_API_KEY"] = "0123456789abcdef0123456789abcdef01234567"
    sys.addaudithook(watch)
    asyncio.run(run(sys.argv[1]))
