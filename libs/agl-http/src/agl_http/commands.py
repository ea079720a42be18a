"""What commands share that run a server: options, when to stop, and where metrics go."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from agl.env import DEFAULT_HOST

if TYPE_CHECKING:
    import asyncio


def stop_signal() -> "asyncio.Event":
    """Set by the first SIGTERM or SIGINT; a second one does what it does without us.

    Called in the event loop that shall be told.
    """
    import asyncio
    import signal

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop_once() -> None:
        stop.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_once)
    return stop


def host_option(what: str, **more: Any) -> Any:
    """The option ``--host``; ``what`` continues "Where to listen"."""
    more = {"default": DEFAULT_HOST, "show_default": True} | more
    return click.option("--host", help=f"Where to listen{what}", **more)


def port_option(default: int | None, **more: Any) -> Any:
    """The option ``--port`` of a command that listens at ``default`` unless told otherwise."""
    says = "0 takes a free one." if default else "0, the default, takes a free one."
    more = {"default": default, "show_default": bool(default), "help": says} | more
    return click.option("--port", type=click.IntRange(0, 65535), **more)


log_level_option = click.option(
    "--log-level",
    default="INFO",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    help="DEBUG logs each request.",
)
tracker_option = click.option(
    "--tracker",
    "trackers",
    multiple=True,
    type=click.Choice(["console", "prometheus"]),
    help="Where metrics go besides /metrics: the log, or /v1/prometheus. May be repeated.",
)


def make_tracker(names: Sequence[str]) -> Any:
    """The metrics backend of these names, which agl-metrics brings; None for none."""
    from agl.errors import UnknownComponentError, install_line
    from agl.plugins import registry

    try:
        made = [registry.load(registry.GROUPS["metrics"], name)() for name in dict.fromkeys(names)]
        several = registry.load(registry.GROUPS["metrics"], "multi") if len(made) > 1 else None
    except UnknownComponentError:
        how = install_line("agl-metrics[prometheus]")
        raise click.UsageError(f"--tracker needs agl-metrics. Run: {how}") from None
    return several(made) if several else next(iter(made), None)
