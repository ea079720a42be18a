"""``agl run``, ``agl dev`` and ``agl config``; each module has a ``command``."""

import click


def _set_up_log(ctx: click.Context, param: click.Parameter, verbose: bool) -> None:
    from agl.utils.logs import setup_logging

    # A line for each request is too much even for those who want to see all.
    quiet: dict[str, int | str] = {"agl.http": "INFO"}
    setup_logging("DEBUG" if verbose else "INFO", submodule_levels=quiet)


verbose_option = click.option(
    *("-v", "--verbose"),
    is_flag=True,
    expose_value=False,
    callback=_set_up_log,
    help="Log spans and adapted data of each rollout, too.",
)
