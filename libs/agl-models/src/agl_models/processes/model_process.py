"""A model server as a child process: its command, its port, its health, the reason of its end."""

import asyncio
import contextlib
import importlib.util
import shutil
import sys
import urllib.request
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from http.client import HTTPException
from pathlib import Path

from agl.errors import AlgorithmError
from agl_http.server import bind
from agl_models.processes.child_process import GRACE_SECONDS, child, tail
from agl_models.versions import MODEL_NAME, Served

HOST = "127.0.0.1"
POLL_SECONDS = 0.25


def has_vllm() -> bool:
    """Whether vLLM can be started here, from this environment or from the path."""
    return importlib.util.find_spec("vllm") is not None or shutil.which("vllm") is not None


def vllm_command(model: str, port: int) -> list[str]:
    """VLLM's server of a model, under the name ``MODEL_NAME``."""
    program = shutil.which("vllm")
    start = [program] if program else [sys.executable, "-m", "vllm.entrypoints.cli.main"]
    return [
        *(*start, "serve", model, "--host", HOST, "--port", str(port)),
        *("--served-model-name", MODEL_NAME),
        # Log-probabilities are those of the softmax that is drawn from, temperature included; and
        # it is the whole one, whatever top_k the maker of the model likes.
        *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"),
    ]


@contextlib.contextmanager
def reserved_port(port: int) -> Generator[int]:
    """Keep a port for a server that starts within the block; 0 takes a free one.

    Raises:
        ConfigError: The port is in use.
    """
    with contextlib.closing(bind(HOST, port, listen=False)) as sock:
        port = sock.getsockname()[1]
        if sys.platform != "linux":
            sock.close()  # elsewhere the server could not bind it
        yield port


@contextlib.asynccontextmanager
async def serve_child(
    name: str,
    command: Callable[[int], list[str]],
    log: Path,
    *,
    port: int = 0,
    timeout_seconds: float,
    environment: Mapping[str, str] | None = None,
) -> AsyncGenerator[Served]:
    """A block in which a server runs and answers ``/health``; it has the model ``MODEL_NAME``.

    Args:
        name: Name of the server, for errors.
        command: Made from the port.
        log: Gets what it writes.
        port: 0 takes a free one.
        timeout_seconds: How long it may take to be ready; the option ``server.timeout_seconds``.
        environment: Added to this process's own.

    Raises:
        ConfigError: The port is in use.
        AlgorithmError: The server ended, or was not ready in time; with the end of its log.
    """
    with reserved_port(port) as port:
        async with child(command(port), log, environment) as process:

            def end_of_log() -> str:
                return f"The end of {log}:\n{tail(log)}"

            def why_ended() -> str | None:
                if (code := process.returncode) is None:
                    return None
                return f"server {name!r} ended with exit code {code}. {end_of_log()}"

            loop, url = asyncio.get_running_loop(), f"http://{HOST}:{port}"
            deadline = loop.time() + timeout_seconds
            while not await asyncio.to_thread(is_healthy, url):
                if process.returncode is not None or loop.time() > deadline:
                    late = f"was not ready after {timeout_seconds:g} seconds"
                    raise AlgorithmError(
                        why_ended()
                        or f"server {name!r} {late} (server.timeout_seconds). {end_of_log()}"
                    )
                await asyncio.sleep(POLL_SECONDS)
            entry = {"model": f"hosted_vllm/{MODEL_NAME}", "api_base": f"{url}/v1"}

            async def why_silent() -> str | None:
                # Calls fail as soon as it dies, and that it has ended is seen a moment later.
                if process.returncode is None and not await asyncio.to_thread(is_healthy, url):
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(process.wait(), GRACE_SECONDS)
                return why_ended()

            yield Served(entry, why_silent, process)


def is_healthy(url: str) -> bool:
    """Whether a server says that it can answer."""
    try:
        ask(f"{url}/health", 10)
    except OSError:
        return False
    return True


def ask(request: str | urllib.request.Request, seconds: float) -> bytes:
    """What a server of this machine answers, past a proxy that the environment may name.

    Raises:
        OSError: No whole answer came, or it is an error of HTTP (``urllib.error.HTTPError``).
    """
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=seconds) as answer:
            return answer.read()
    except HTTPException as error:
        raise OSError(repr(error)) from error
