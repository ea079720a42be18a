"""How an agent and a tracer come into a fresh interpreter, before any agent's code has run."""

import base64
import importlib
import pickle
import sys
from multiprocessing import spawn
from typing import Any

from agl.agent.base import LitAgent
from agl.errors import ConfigError
from agl.tracer.base import Tracer

is_inside = False
"""Whether this interpreter was started to be a sandbox."""


def pack(agent: LitAgent[Any], tracer: Tracer, *, by_name: bool = False) -> dict[str, Any]:
    """What ``unpack`` makes the two of; JSON.

    An agent travels as it is where that can be pickled, and else by the name that it has in its
    module.

    Args:
        by_name: The agent's name goes first.

    Raises:
        ConfigError: Neither can be done.
    """
    packed = (by_name and _named(agent)) or _pickled(agent) or _named(agent)
    if packed is None:
        raise ConfigError(
            f"agent {_name(agent)!r} cannot be brought into a sandbox: it can neither be pickled, "
            "nor is it the value of a name in its module. Define it at the top of a module"
        )
    tracing = _pickled(tracer)
    if tracing is None:
        raise ConfigError(
            f"tracer {type(tracer).__name__} cannot be brought into a sandbox: it cannot be "
            "pickled. Define its class at the top of a module, and open nothing in it before init()"
        )
    needs_main = packed.get("module") == "__main__" or any(
        "__main__" in repr(base64.b64decode(each.get("pickle", ""))) for each in (packed, tracing)
    )
    main = spawn.get_preparation_data("agl") if needs_main else {}
    kept = {name: main[name] for name in main if name.startswith("init_main_from")}
    if needs_main and not kept:
        raise ConfigError(
            f"agent {_name(agent)!r} cannot be brought into a sandbox: it is written in a notebook "
            "(or python -c), and another process imports agents from files. Write it into a module "
            "(in a notebook: %%writefile agent.py) and import it from there"
        )
    return {"agent": packed, "tracer": tracing, "main": kept}


def unpack(packed: dict[str, Any]) -> tuple[LitAgent[Any], Tracer]:
    """The agent and its initialised tracer, in the process that will run them."""
    global is_inside
    is_inside = True
    spawn.prepare(packed["main"])
    agent, tracer = _unpacked(packed["agent"]), _unpacked(packed["tracer"])
    tracer.init()
    tracer.init_worker(0, None)
    return agent, tracer


def _pickled(value: Any) -> dict[str, str] | None:
    try:
        return {"pickle": base64.b64encode(pickle.dumps(value)).decode()}
    except Exception:  # whatever its classes raise
        return None


def _named(agent: LitAgent[Any]) -> dict[str, str] | None:
    for module in {getattr(agent, "__module__", ""), type(agent).__module__}:
        for name, value in vars(sys.modules[module]).items() if module in sys.modules else ():
            if value is agent:
                return {"module": module, "name": name}
    return None


def _unpacked(packed: dict[str, str]) -> Any:
    if "pickle" in packed:
        # The runner sent it over a pipe that no agent has held yet.
        return pickle.loads(base64.b64decode(packed["pickle"]))
    return getattr(importlib.import_module(packed["module"]), packed["name"])


def _name(agent: LitAgent[Any]) -> str:
    return getattr(agent, "__name__", type(agent).__name__)
