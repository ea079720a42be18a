"""The passages as an MCP server over HTTP, with one tool: ``retrieve``.

    python wiki_retriever_mcp.py                 # at http://127.0.0.1:8099/mcp
    python wiki_retriever_mcp.py --port 0        # at a free port; the address is printed

The server holds the passages once, however many rollouts ask. It is for this machine: it takes
no token.
"""

import argparse
import contextlib
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

from retriever import load_retriever
from wiki_tasks import data_folder, load_passages

PORT = 8099
MAX_PASSAGES = 10


def build_server() -> Any:
    """The MCP server, with its passages loaded."""
    from mcp.server.fastmcp import FastMCP

    retriever = load_retriever(load_passages(), data_folder())
    # Stateless: each call is a request of its own, and nothing is kept for a client that is gone.
    server = FastMCP("wiki_retriever", log_level="WARNING", stateless_http=True)

    @server.tool()
    def retrieve(query: str, top_k: int = 3) -> str:
        """Find passages of an encyclopedia by a few words; ``top_k`` is how many, up to 10."""
        found = retriever.search(query, max(1, min(top_k, MAX_PASSAGES)))
        return "\n".join(found) or "nothing found"

    return server


@contextlib.contextmanager
def retriever_process() -> Generator[str]:
    """The server as a process at a free port, for as long as the block lasts; yields its address.

    Raises:
        RuntimeError: It did not start; what it said stands on standard error.
    """
    command = [sys.executable, Path(__file__), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise RuntimeError(f"{Path(__file__).name} ended with {process.wait()}")
        yield url
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def main() -> None:
    """Serve until the process is ended."""
    import uvicorn

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=PORT)
    options = parser.parse_args()
    app = build_server().streamable_http_app()
    with socket.create_server(("127.0.0.1", options.port)) as sock:
        print(f"http://127.0.0.1:{sock.getsockname()[1]}/mcp", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[sock])


if __name__ == "__main__":
    main()
