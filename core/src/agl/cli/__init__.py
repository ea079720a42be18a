"""The ``agl`` command; each verb is an entry point of the group ``agl.commands``."""

import sys
import traceback
from typing import NoReturn

import click

from agl import __version__, errors
from agl.plugins import registry
from agl.utils.secrets import hide
from agl.utils.text import did_you_mean

DONE, RUN_FAILED, REQUEST_WRONG = 0, 1, 2
_HELP = ["-h", "--help"]
"""Exit codes."""


class Verbs(click.Group):
    """Verbs by name; ``--help`` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All that are installed."""
        return registry.names_in(registry.GROUPS["command"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one verb."""
        if cmd_name not in self.list_commands(ctx):
            return None
        component = registry.find(registry.GROUPS["command"], cmd_name)
        command = registry.load_component(component)
        if not isinstance(command, click.Command):
            got = type(command).__qualname__
            raise errors.PluginError(f"{component}: expected a click.Command, got {got}")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb, or name the nearest."""
        from agl.utils.catalogue import offered

        name = args[0]
        known, ours = self.list_commands(ctx), offered("agl.commands")
        if name in ours and name not in known:
            line = errors.install_line(ours[name])
            raise click.UsageError(f"{name!r} is not installed. Run: {line}")
        if not name.startswith("-") and name not in known:
            hint = did_you_mean(name, {*known, *ours}) or f" There are {', '.join(known)}"
            raise click.UsageError(f"unknown command {name!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List verbs with a line each, by what they are for; a star marks what is not installed."""
        from importlib.metadata import metadata

        from agl.utils.catalogue import commands

        installed = registry.components(registry.GROUPS["command"])
        known = {component.name: component.distribution for component in installed}
        sections: dict[str, dict[str, str]] = {}
        absent: dict[str, str] = {}
        for section, listed in commands().items():
            sections[section] = {}
            for name, (package, about) in listed.items():
                is_there = known.pop(name, None) is not None
                sections[section][name if is_there else f"{name} *"] = about
                if not is_there:
                    absent[package] = f"{absent[package]}, {name}" if package in absent else name
        others = {n: (metadata(of).get_all("Summary") or [of])[0] for n, of in known.items()}
        sections |= {"Of other packages": others, "* Not installed": absent}
        for section, rows in sections.items():
            if rows:
                with formatter.section(section):
                    formatter.write_dl([(f"{name:<12}", about) for name, about in rows.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Name the environment variables."""
        from agl.env import LightningEnvVar

        with formatter.section("Environment, see docs/reference/environment.md"):
            formatter.write_text(", ".join(LightningEnvVar))


@click.group(cls=Verbs, context_settings={"help_option_names": _HELP, "show_default": True})
@click.version_option(__version__, prog_name="agl", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def cli() -> None:
    """Train any agent with any algorithm, through one store."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command and exit: 0 done, 1 the run failed, 2 the request was wrong.

    Args:
        arguments: As typed after ``agl``; None takes those of the process.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    # It may stand anywhere, also after the verb.
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        code = cli.main(arguments, prog_name="agl", standalone_mode=False)
    except BaseException as error:
        if debug and not isinstance(error, click.exceptions.Exit | SystemExit):
            print(hide(traceback.format_exc()), end="", file=sys.stderr)
        code = _report(error)
    sys.exit(code if isinstance(code, int) else DONE)


def _report(error: BaseException) -> int:
    """Say in one sentence what went wrong; the exit code."""
    match error:
        case click.exceptions.Exit():
            return error.exit_code
        case errors.StoppedError():
            return RUN_FAILED  # `agl run` has said why, and how to go on
        case click.Abort() | KeyboardInterrupt():
            message, code = "interrupted", RUN_FAILED
        case click.NoSuchOption():
            near = did_you_mean(error.option_name, error.possibilities or ())
            message, code = f"no such option {error.option_name!r}.{near}", REQUEST_WRONG
        case click.MissingParameter() if error.ctx is not None:
            message, code = f"{error.format_message()} {error.ctx.get_usage()}", REQUEST_WRONG
        case click.ClickException():
            message, code = error.format_message(), REQUEST_WRONG
        case errors.ConfigError() | errors.InvalidQueryError():
            message, code = str(error), REQUEST_WRONG
        case errors.PluginError() | errors.StoreUnavailableError():
            message, code = str(error), REQUEST_WRONG
        case errors.AlgorithmError():
            message, code = f"{error} (--debug shows the traceback)", RUN_FAILED
        case errors.AglError():
            message, code = str(error), RUN_FAILED
        case OSError() if error.filename is not None:
            message = f"{error.filename!r}: {error.strerror} (--debug shows the traceback)"
            code = RUN_FAILED
        case Exception():
            last = traceback.extract_tb(error.__traceback__)[-1]  # a plugin's own line, mostly
            at = f"at {last.filename}:{last.lineno}"
            message = f"{type(error).__name__}: {error}, {at} (--debug shows the traceback)"
            code = RUN_FAILED
        case _:
            raise error
    message = " ".join(message.replace("``", "").split())
    print(f"agl: {hide(message)}", file=sys.stderr)
    return code
