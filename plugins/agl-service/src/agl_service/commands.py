"""``agl server``, ``agl data`` and ``agl train``."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import click

from agl_http.commands import port_option

_PLACE: Any = {"default": "agl-server", "show_default": True, "type": click.Path(path_type=Path)}
folder_option = click.option("--folder", **_PLACE, help="Of the server: users, data, jobs.")
_URL: Any = {"envvar": "AGENT_LIGHTNING_SERVER_URL", "show_envvar": True}
_URL_HELP = "Of the training server, with the token, which may stand in AGENT_LIGHTNING_API_KEY."
url_option = click.option("--url", **_URL, help=_URL_HELP)


@click.group("server")
def server() -> None:
    """A server whose jobs train a model, with agents that run at its clients."""
    os.umask(0o077)  # tokens and data of users


@server.command("start")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--model", envvar="LIGHTNING_MODEL_PATH", required=True, help="Folder or name.")
@click.option("--algorithm", envvar="LIGHTNING_RL_ALGORITHM", default="grpo", show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where all of it listens.")
@port_option(8000)
@folder_option
def start(overrides: tuple[str, ...], folder: Path, host: str, port: int, **about: str) -> None:
    """Serve until told to stop; jobs that were under way go on.

    KEY=VALUE are options of the algorithm, as group_size=8. The address that is printed has the
    token of the first user in it; `agl server user` adds others.
    """
    from threading import Event

    from agl.cli.shared import note
    from agl.utils.logs import setup_logging
    from agl_http.server import ServerThread
    from agl_runs.folders import hold_folder
    from agl_service.jobs import Jobs
    from agl_service.server import app_of, read_algorithm, read_users

    setup_logging()
    algorithm = read_algorithm(about["algorithm"], about["model"], overrides)
    stop, folder = Event(), folder.absolute()
    with hold_folder(folder, "server.lock"):
        jobs = Jobs(folder, host)
        thread = ServerThread(app_of(jobs, algorithm), host, port)
        thread.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        (folder / "server.json").write_text(json.dumps({"url": thread.url, "pid": os.getpid()}))
        note(f"agl server: {_address(folder, next(iter(read_users(folder).values()), 'first'))}")
        jobs.run_all(stop)
        thread.stop()
        (folder / "server.json").unlink()


@server.command("user")
@click.argument("name")
@folder_option
def user(name: str, folder: Path) -> None:
    """Print the address for user NAME, who is added if there is none of this name."""
    click.echo(_address(folder, name))


@server.command("status")
@folder_option
def status(folder: Path) -> None:
    """Print address and process of the server, and its jobs."""
    from agl.cli.shared import print_table
    from agl_service.jobs import RECORD, read_job

    click.echo(" ".join(f"{name} {value}" for name, value in _running(folder).items()))
    jobs = [read_job(one) for one in sorted(folder.glob(f"*/jobs/*/{RECORD}"))]
    about = ("id", "user", "kind", "state", "error")
    print_table(about, [[getattr(job, name) for name in about] for job in jobs])


@server.command("stop")
@folder_option
def stop(folder: Path) -> None:
    """Stop the server; its jobs go on at the next start."""
    os.kill(_running(folder)["pid"], signal.SIGTERM)


def _running(folder: Path) -> dict[str, Any]:
    from agl_sqlite.lockfile import is_held

    if not (folder / "server.json").exists() or not is_held(folder / "server.lock"):
        raise click.UsageError(f"no server runs in {folder}; run: agl server start")
    return json.loads((folder / "server.json").read_text())


def _address(folder: Path, name: str) -> str:
    from agl_http.tokens import with_token
    from agl_service.server import token_of

    return with_token(_running(folder)["url"], token_of(folder, name))


@click.group("data")
def data() -> None:
    """Tasks at a training server."""


@data.command("upload")
@click.option("--train", required=True, help="File of tasks to learn from.")
@click.option("--test", help="File of tasks to measure with.")
@click.option("--data-id", help="How it shall be called.")
@url_option
def upload(train: str, test: str | None, data_id: str | None, url: str | None) -> None:
    """Upload tasks, and print their id."""
    from agl_service.client import Client

    click.echo(Client(url).upload_data(train, test, data_id))


@click.command("train")
@click.option("--agent-script", required=True, help="FILE.py, or FILE.py:function.")
@click.option("--data-id", required=True, help="What agl data upload printed.")
@click.option("--nworkers", default=-1, show_default=True, help="-1 for four per core.")
@click.option("--epochs", default=1, show_default=True)
@click.option("--batch-size", default=32, show_default=True, help="Tasks per update.")
@url_option
def train(agent_script: str, url: str | None, **options: Any) -> None:
    """Train at a training server, with an agent function of (resource, task) that runs here."""
    import runpy

    from agl.cli.shared import print_json
    from agl_service.client import Client

    path, _, name = agent_script.partition(":")
    if (agent := runpy.run_path(path).get(name or "agent")) is None:
        raise click.UsageError(f"{path} has no function {name or 'agent'!r}; say FILE.py:function")
    print_json(vars(Client(url).train(agent, **options)))
