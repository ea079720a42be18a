"""Who serves a version: vLLM or ``agl serve`` as a child process, or an address that is there."""

import asyncio
import contextlib
import json
import sys
import urllib.request
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from agl.errors import AlgorithmError, ConfigError, install_line
from agl_http.server import bind
from agl_models.processes.child_process import child, tail
from agl_models.processes.model_process import HOST, has_vllm, serve_child, vllm_command
from agl_models.versions import MODEL_NAME, Served, Version
from agl_runs.options import AboveZero, Group
from agl_unsloth.models import find_machine


@dataclass(frozen=True, kw_only=True, repr=False)
class Server(Group):
    """What serves a version.

    Args:
        type: ``vllm``, ``torch`` (``agl serve``), an address that ends in ``/v1``, or ``auto``:
            vLLM where it and a GPU are, else ``torch``.
        arguments: Further ones for the command of the server, as
            ``[--enable-auto-tool-choice, --tool-call-parser, hermes]``.
        timeout_seconds: Until the server must be ready.
        port: Port of the server; 0 takes a free one.
        reload_command: With an address: what makes its server load a version; ``{model}`` and
            ``{version}`` in it are replaced.
    """

    type: str = "auto"
    arguments: list[str] | None = None
    timeout_seconds: AboveZero = 600.0
    port: Annotated[int, Ge(0)] = 0
    reload_command: list[str] | None = None

    @property
    def is_address(self) -> bool:
        """Whether the server is none of ours."""
        return self.type.startswith(("http://", "https://"))


def choose_server(name: str) -> str:
    """What ``auto`` means here; other names as they are, if they can be used.

    Raises:
        ConfigError: Nothing is installed that could serve, or the name is none.
    """
    if name.startswith(("http://", "https://")):
        return name.rstrip("/")
    can_vllm = has_vllm()
    has_torch = bool(metadata.entry_points(group="agl.commands", name="serve"))
    match name:
        case "auto" if can_vllm and find_machine().is_gpu:
            return "vllm"
        case "auto" if has_torch:
            return "torch"
        case "auto":
            raise ConfigError(
                "server: nothing here can serve a model. Run: pip install vllm (with a GPU), or "
                f"{install_line('agl-torch')} (a small server, CPU or GPU); or give a server's "
                "address"
            )
        case "vllm" if not can_vllm:
            raise ConfigError(
                "server 'vllm': vllm is not installed here. Run: pip install vllm, or choose "
                "server 'torch'"
            )
        case "torch" if not has_torch:
            raise ConfigError(
                "server 'torch' is 'agl serve' of agl-torch, which is not installed here. Run: "
                f"{install_line('agl-torch')}"
            )
        case "vllm" | "torch":
            return name
        case _:
            raise ConfigError(
                f"server {name!r}: expected auto, vllm, torch, or an address as "
                "http://127.0.0.1:8000/v1"
            )


def check_port(server: Server) -> None:
    """Refuse a port in use."""
    if not server.is_address and server.port:
        bind(HOST, server.port).close()


@contextlib.asynccontextmanager
async def serve(
    version: Version, server: Server, log: Path, *, seed: int = 0, deterministic: bool = False
) -> AsyncGenerator[Served]:
    """A block in which a version answers.

    Args:
        server: Whose type is ``vllm``, ``torch``, or an address.
        deterministic: Whether answers shall depend on their requests alone.

    Raises:
        ConfigError: The port is in use.
        AlgorithmError: The server ended, or was not ready in time; with the end of its log.
    """
    if server.is_address:
        yield await _use_address(version, server, log)
        return
    # Equal seeds would give every version the same luck.
    more = ["--seed", str(seed + version.number)]
    more += ["--deterministic"] if deterministic else []
    more += server.arguments or []

    def command(port: int) -> list[str]:
        if server.type == "vllm":
            return [*vllm_command(version.ref, port), *more]
        return [
            *(sys.executable, "-c", "from agl.cli import main; main()", "serve", version.ref),
            *("--host", HOST, "--port", str(port), "--name", MODEL_NAME),
            *("--weights-version", str(version.number), *more),
        ]

    of_child = {"port": server.port, "timeout_seconds": server.timeout_seconds}
    async with serve_child(server.type, command, log, **of_child) as served:
        yield served


async def _use_address(version: Version, server: Server, log: Path) -> Served:
    if server.reload_command:
        command = [
            part.replace("{model}", version.ref).replace("{version}", str(version.number))
            for part in server.reload_command
        ]
        async with child(command, log) as process:
            if await process.wait() != 0:
                raise AlgorithmError(
                    f"reload_command ended with exit code {process.returncode}. The end of "
                    f"{log}:\n{tail(log)}"
                )
    try:
        answer = json.loads(await asyncio.to_thread(_get, f"{server.type}/models"))
        names = [str(model["id"]) for model in answer["data"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AlgorithmError(
            f"server {server.type!r} does not say which models it has (GET /models): {error!r}"
        ) from error
    # One that was told to load a folder calls it so, or keeps a name of its own.
    known = [name for name in names if name in (version.ref, MODEL_NAME)] or names
    if not known:
        raise AlgorithmError(f"server {server.type!r} has no model")
    return Served({"model": f"hosted_vllm/{known[0]}", "api_base": server.type})


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read()
