"""``agl vllm``: vLLM's own command, whose server returns token ids without being asked.

vLLM returns them to requests that say ``return_token_ids``, as those of the gateway do. An agent
that calls the server directly, under a tracer that records its calls, does not say it.
"""

import json
import sys
from typing import Any

import click

from agl_http.layers import App, Receive, Scope, Send, first, read_body

PATHS = ("/v1/chat/completions", "/v1/completions")
"""Ends of the addresses whose requests have the field."""


class ReturnTokenIds:
    """Middleware of ASGI: every request for an answer asks for token ids, unless it says something.

    Requests are read whole before they go on; answers pass as they are, streams as well.
    """

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_asked = scope["type"] == "http" and scope["method"] == "POST"
        if not is_asked or not scope["path"].endswith(PATHS):
            return await self.app(scope, receive, send)
        given = await read_body(receive, sys.maxsize)
        if given is None:
            return None  # the client is gone
        body = _asking(given)
        headers = [header for header in scope["headers"] if header[0] != b"content-length"]
        headers.append((b"content-length", b"%d" % len(body)))
        return await self.app({**scope, "headers": headers}, first(body, receive), send)


def _asking(body: bytes) -> bytes:
    """The request with the field; what is no object goes on as it came, to be refused there."""
    try:
        request: Any = json.loads(body)
    except ValueError:
        return body
    if not isinstance(request, dict) or "return_token_ids" in request:
        return body
    return json.dumps({**request, "return_token_ids": True}).encode()


@click.command(
    "vllm",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Run vLLM's own command: agl vllm serve MODEL ...

    ``serve`` gets a middleware that makes the server return the token ids of prompts and answers
    without being asked. Everything else is as vLLM has it; its help is agl vllm --help.
    """
    try:
        from vllm.entrypoints.cli.main import main  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise
        raise click.UsageError(
            "'vllm' needs vLLM, which is not installed. Run: pip install vllm (it wants a GPU)"
        ) from None
    given = list(arguments)
    if given[:1] == ["serve"]:
        given.insert(1, f"--middleware={__name__}.{ReturnTokenIds.__name__}")
    sys.argv = ["vllm", *given]
    main()
