"""``agentlightning server start``: a task server of 0.1 over a store, from the command line."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from agentlightning.server import AgentLightningServer


@click.group()
def main() -> None:
    """Commands of 0.1; all others are those of ``agl``."""


@main.group()
def server() -> None:
    """The task server of 0.1."""


@server.command()
@click.option("--host", default="127.0.0.1", help="Anything but loopback needs AGL_SERVER_TOKEN.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535))
@click.option("--path", type=click.Path(path_type=Path), help="A store file; else in memory.")
@click.option("--openai-compatible-llm-uri", help="Refused; publish an LLM as a resource.")
@click.option("--debug", is_flag=True, help="Log more.")
def start(
    host: str, port: int, path: Path | None, openai_compatible_llm_uri: str | None, debug: bool
) -> None:
    """Serve tasks, resources and reports until Ctrl-C."""
    from agentlightning.server import AgentLightningServer
    from agl import InMemoryLightningStore, SqliteLightningStore, setup_logging
    from agl.errors import ConfigError

    if openai_compatible_llm_uri is not None:
        raise click.UsageError(
            "--openai-compatible-llm-uri is not supported: the server hosts no model. Publish its "
            "address: await server.update_resources({'llm': LLM(endpoint=..., model=...)}), or "
            "run: agl gateway"
        )
    setup_logging("DEBUG" if debug else "INFO")
    store = InMemoryLightningStore() if path is None else SqliteLightningStore(path)
    try:
        asyncio.run(_serve(AgentLightningServer(host, port, store=store)))
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    except KeyboardInterrupt:
        pass


async def _serve(server: "AgentLightningServer") -> None:
    await server.start()
    click.echo(f"serving tasks of 0.1 on http://{server.host}:{server.port}", err=True)
    await server.run_forever()
