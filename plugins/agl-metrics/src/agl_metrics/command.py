"""``agl prometheus``: show metrics to Prometheus from a process of its own."""

import click

from agl.env import LightningEnvVar
from agl_http.commands import host_option, log_level_option, port_option

DEFAULT_PORT = 4748


@click.command("prometheus")
@host_option(". Anything but loopback needs AGL_SERVER_TOKEN.")
@port_option(DEFAULT_PORT)
@click.option("--metrics-path", default="/v1/prometheus", help="Where the metrics are.")
@click.option(
    "--store",
    "store_url",
    metavar="URL",
    help="Show /metrics of this store server as well: the address with a token of a reader.",
)
@click.option(
    "--token",
    envvar=LightningEnvVar.AGL_SERVER_TOKEN.value,
    show_envvar=True,
    help="The store's. Prometheus then sends this, or a token of a reader made from it, as bearer "
    "token or password.",
)
@log_level_option
@click.option("--access-log", is_flag=True, help="Log each request.")
def command(
    host: str,
    port: int,
    metrics_path: str,
    store_url: str | None,
    token: str | None,
    log_level: str,
    access_log: bool,
) -> None:
    """Show the metrics of other processes to Prometheus.

    Of those that run with --tracker prometheus and the same PROMETHEUS_MULTIPROC_DIR as this
    command: stores, gateways, your own programs. And of a store server anywhere, with --store.
    """
    import asyncio
    import os

    from agl.errors import ConfigError
    from agl.utils.logs import setup_logging
    from agl_http.addresses import is_loopback
    from agl_metrics.serving import Exporter, serve
    from agl_metrics.shared_folder import FOLDER

    if not metrics_path.startswith("/") or metrics_path in ("/", "/health"):
        raise click.UsageError(
            f"--metrics-path {metrics_path!r}: expected a path below the root, as /v1/prometheus"
        )
    folder = os.environ.get(FOLDER)
    if folder is None and store_url is None:
        raise click.UsageError(
            f"there is nothing to show: set {FOLDER} to the folder in which the processes keep "
            "their metrics, or give --store URL"
        )
    if folder is not None and not os.path.isdir(folder):
        raise click.UsageError(f"{FOLDER}: there is no folder {folder!r}; make an empty one")
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"agl prometheus: host {host!r} can be reached from other machines, so a token is "
            "needed; set AGL_SERVER_TOKEN to the store's, or serve on 127.0.0.1"
        )
    setup_logging(log_level.upper())
    exporter = Exporter(metrics_path.rstrip("/"), folder, store_url)
    asyncio.run(serve(exporter, host, port, token, access_log))
