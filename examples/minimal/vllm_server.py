"""A vLLM server for as long as a ``with`` block lasts.

    python vllm_server.py Qwen/Qwen2.5-0.5B-Instruct --max-model-len 4096

It is the command ``vllm serve``, which is to be on the path; what follows the model is passed on to
it.
"""

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Sequence

START_SECONDS = 600.0
"""Weights are loaded, and downloaded where they are not there."""
STOP_SECONDS = 30.0


@contextlib.contextmanager
def vllm_server(
    model: str, options: Sequence[str] = (), *, port: int = 0, start_seconds: float = START_SECONDS
) -> Generator[str]:
    """Start ``vllm serve``, wait until it takes requests, and end it after the block.

    Args:
        model: A folder or a Hugging Face name.
        options: Further ones of ``vllm serve``.
        port: 0 takes a free one.
        start_seconds: How long it may take to be ready.

    Yields:
        Its address for an OpenAI client, ending in ``/v1``.

    Raises:
        FileNotFoundError: There is no ``vllm`` on the path.
        RuntimeError: It ended before it was ready.
        TimeoutError: It was not ready in time; it is ended.
    """
    command = shutil.which("vllm")
    if command is None:
        raise FileNotFoundError("no 'vllm' on the path; needed for a local model: pip install vllm")
    port = port or _free_port()
    process = subprocess.Popen([command, "serve", model, "--port", str(port), *options])
    try:
        _wait_until_ready(process, f"http://127.0.0.1:{port}/health", start_seconds)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        _end(process)


def _wait_until_ready(process: "subprocess.Popen[bytes]", url: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"vllm serve ended with {process.returncode}; its output says why")
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.2)
    raise TimeoutError(f"vllm serve was not ready after {seconds:g} seconds; give it more")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ask it to end, as it has processes of its own; then make it."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Serve until the process is interrupted."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        raise SystemExit(__doc__)
    with vllm_server(sys.argv[1], sys.argv[2:]) as url:
        print(url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
