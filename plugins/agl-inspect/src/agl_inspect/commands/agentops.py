"""``agl agentops``: programs with AgentOps' SDK write into a store."""

from pathlib import Path

import click

from agl.env import DEFAULT_HOST
from agl_http.commands import log_level_option, port_option


@click.command("agentops")
@click.option("--host", default=DEFAULT_HOST, show_default=True, help="Where to listen.")
@port_option(4749)
@click.option(
    "--path",
    type=click.Path(path_type=Path),
    help="A store file, made where there is none, or a run's folder.",
)
@click.option("--url", help="Address of a store server; its token is in AGL_SERVER_TOKEN.")
@click.option(
    "--key",
    default=None,
    envvar="AGENTOPS_API_KEY",
    show_envvar=True,
    help="What programs give as API key; one is made if none is given.",
)
@log_level_option
def command(
    host: str, port: int, path: Path | None, url: str | None, key: str | None, log_level: str
) -> None:
    """Take what AgentOps' SDK sends, in the place of AgentOps' server.

    It prints the variables that programs need; they run as they are. Each trace becomes a rollout,
    which `agl export` and algorithms read, and `agl import` gives rewards to.
    """
    import asyncio
    import uuid

    from agl.utils.logs import setup_logging
    from agl.utils.secrets import learn
    from agl_http.commands import stop_signal
    from agl_http.layers import ErrorGuard, Unpacked, WholeBody
    from agl_http.server import ServerThread, bind
    from agl_http.wire import MAX_BODY_BYTES
    from agl_inspect.collector import Collector
    from agl_inspect.commands.import_ import open_or_make

    setup_logging(log_level.upper())
    given = key or str(uuid.uuid4())  # AgentOps' keys are of this form
    learn(given)

    async def serve() -> None:
        stop = stop_signal()
        sock = bind(host, port)
        app = Collector(open_or_make(path, url), given).app()
        whole = WholeBody(Unpacked(app, MAX_BODY_BYTES), MAX_BODY_BYTES)
        server = ServerThread(ErrorGuard(whole, lambda *_: None), host, sock=sock)
        await asyncio.to_thread(server.start)
        click.echo(f"agl agentops: {server.url}", err=True)
        for name, value in (
            ("AGENTOPS_API_KEY", given),
            ("AGENTOPS_API_ENDPOINT", server.url),
            ("AGENTOPS_EXPORTER_ENDPOINT", f"{server.url}/v1/traces"),
        ):
            click.echo(f"export {name}={value}")
        try:
            await stop.wait()
        finally:
            await asyncio.to_thread(server.stop)

    asyncio.run(serve())
