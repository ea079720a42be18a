"""``agl server``, ``data``, ``train``, ``evaluate``, and ``agl model`` of checkpoints."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agl_http.commands import host_option, port_option

if TYPE_CHECKING:
    from agl_service.client import Client
    from agl_service.instances import Instance

_PLACE: Any = {"default": "agl-server", "show_default": True, "type": click.Path(path_type=Path)}
folder_option = click.option("--folder", **_PLACE, help="Folder of the server: users, data, jobs.")


def _client(context: click.Context, option: click.Parameter, url: str | None) -> "Client":
    from agl_service.client import Client

    return Client(url)


_URL: Any = {"envvar": "AGENT_LIGHTNING_SERVER_URL", "show_envvar": True, "callback": _client}
_URL_HELP = "Of the training server, with the token, which may stand in AGENT_LIGHTNING_API_KEY."
url_option = click.option("--url", "client", **_URL, help=_URL_HELP)
json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON.")


def _print(rows: Any, as_json: bool = True) -> None:
    """Rows of equal keys as a table, anything as JSON."""
    from agl.cli.shared import print_json, print_table

    if as_json or not rows:
        print_json(rows)
    else:
        print_table(list(rows[0]), [list(row.values()) for row in rows])


@click.group("server")
def server() -> None:
    """A server whose jobs train a model, with agents that run at its clients."""
    # Tokens and data of users.
    click.get_current_context().call_on_close(partial(os.umask, os.umask(0o077)))


@server.command("start")
@click.argument("overrides", nargs=-1, metavar="[FILE] [KEY=VALUE]...")
@click.option("--model", "model__path", help="Folder or name.  [or LIGHTNING_MODEL_PATH]")
@click.option("--algorithm", "algorithm__name", help="[default: grpo; or LIGHTNING_RL_ALGORITHM]")
@click.option("--gpus", "model__tensor_parallel", type=int, help="How many GPUs sample, with vLLM.")
@click.option("--jobs-at-once", "service__jobs_at_once", type=int, help="[default: 1]")
@click.option("--store", "service__store", help="postgresql://..., for several servers.")
@click.option("--address", "service__address", help="Address of this server, for the others.")
@host_option(".")
@port_option(8000)
@folder_option
def start(overrides: tuple[str, ...], folder: Path, host: str, port: int, **options: Any) -> None:
    """Serve until told to stop; jobs that were under way go on.

    FILE is in YAML, see docs/howto/train-at-a-server.md. KEY=VALUE are options of the algorithm, as
    group_size=8. The address that is printed has the token of the first user in it, which is new or
    what AGENT_LIGHTNING_API_KEY says; `agl server users add` adds others.
    """
    from dataclasses import replace
    from threading import Event

    from agl.cli.shared import note
    from agl.errors import ConfigError
    from agl.execution.signals import GracefulShutdown, graceful_signals
    from agl.utils.logs import setup_logging
    from agl_http.addresses import url_of
    from agl_http.server import ServerThread
    from agl_http.tokens import with_token
    from agl_service.instances import Instance, join
    from agl_service.jobs import Jobs
    from agl_service.server import app_of
    from agl_service.settings import read_settings
    from agl_service.users import read_users, token_of

    setup_logging()
    file = Path(overrides[0]) if overrides and "=" not in overrides[0] else None
    given = {option.replace("__", "."): value for option, value in options.items()}
    settings = read_settings(file, given, overrides[file is not None :])
    stop, folder = Event(), folder.absolute()

    def ask_to_stop() -> bool:
        stop.set()
        return True

    if settings.store and host in ("0.0.0.0", "::") and not settings.address:
        raise ConfigError(f"--host {host}: say --address, where the other servers reach this one")
    address = settings.address.rstrip("/")
    own = Instance.here(address or url_of(host, port), settings.store)
    with join(folder, own):
        first = next(iter(read_users(folder).values()), "first")
        token = token_of(folder, first, os.environ.get("AGENT_LIGHTNING_API_KEY"))
        jobs = Jobs(folder, settings.jobs_at_once, settings.quotas, settings.store)
        thread = ServerThread(app_of(jobs, settings), host, port)
        thread.start()
        jobs.address = address or thread.url
        with graceful_signals(GracefulShutdown(ask_to_stop), signal.SIGTERM, signal.SIGINT):
            replace(own, url=jobs.address).write(folder)
            note(f"agl server: {with_token(jobs.address, token)}")
            jobs.run_all(stop)
        thread.stop()


@server.group("users")
def users() -> None:
    """Who may use the server."""


@users.command("add")
@click.argument("name")
@folder_option
def add_user(name: str, folder: Path) -> None:
    """Print the address for user NAME, who is added if there is none of this name."""
    from agl_http.tokens import with_token
    from agl_service.users import token_of

    click.echo(with_token(_known_instances(folder)[0].url, token_of(folder, name)))


@users.command("list")
@folder_option
def list_users(folder: Path) -> None:
    """Print the names."""
    from agl_service.users import read_users

    click.echo("\n".join(sorted(read_users(folder).values())))


@users.command("revoke")
@click.argument("name")
@folder_option
def revoke(name: str, folder: Path) -> None:
    """Refuse the token of NAME from now on; their jobs pause within a minute.

    Data and jobs stay, for `agl server users add NAME`, which makes a new token.
    """
    from agl_service.users import revoke_user

    revoke_user(folder, name)


@server.command("status")
@folder_option
def status(folder: Path) -> None:
    """Print addresses and processes of the servers, and their jobs."""
    from agl_service.jobs import RECORD, read_job

    for one in _known_instances(folder):
        click.echo(f"url {one.url} host {one.host} pid {one.pid}")
    jobs = [read_job(one) for one in sorted(folder.glob(f"*/jobs/*/{RECORD}"))]
    about = ("id", "user", "kind", "state", "error")
    _print([{name: getattr(job, name) for name in about} for job in jobs], as_json=False)


@server.command("stop")
@folder_option
def stop(folder: Path) -> None:
    """Stop the servers on this machine, and wait for their end.

    Jobs go on at the next start, or at other servers.
    """
    import socket
    import time

    here = socket.gethostname()
    own = [one for one in _known_instances(folder) if one.host == here]
    if not own:
        raise click.UsageError(f"no server of {folder} runs on {here}")
    for one in own:
        os.kill(one.pid, signal.SIGTERM)
    while any(one.is_running(folder) for one in own):
        time.sleep(0.1)


def _known_instances(folder: Path) -> "list[Instance]":
    from agl_service.instances import running_instances

    if not (found := running_instances(folder)):
        raise click.UsageError(f"no server runs in {folder}; run: agl server start")
    return found


@click.group("data")
def data() -> None:
    """Tasks at a training server."""


@data.command("upload")
@click.option("--train", required=True, help="File of tasks to learn from.")
@click.option("--test", help="File of tasks to measure with.")
@click.option("--data-id", help="Name of the data.")
@url_option
def upload(train: str, test: str | None, data_id: str | None, client: "Client") -> None:
    """Upload tasks, and print their id."""
    click.echo(client.upload_data(train, test, data_id))


@data.command("list")
@json_option
@url_option
def list_data(client: "Client", as_json: bool) -> None:
    """Print your data: ids, and how many tasks there are to learn from and to measure with."""
    about = ("id", "train_tasks", "test_tasks", "error")
    _print([{name: one[name] for name in about} for one in client.data()], as_json)


@data.command("delete")
@click.argument("data_id")
@url_option
def delete(data_id: str, client: "Client") -> None:
    """Delete data; jobs keep the tasks with which they began."""
    client.delete_data(data_id)


def _load_agent(context: click.Context, option: click.Parameter, script: str) -> Any:
    import runpy
    import sys

    path, _, name = script.partition(":")
    if not Path(path).is_file():
        raise click.UsageError(f"{path}: no such file; say FILE.py, or FILE.py:function")
    sys.path.insert(0, str(Path(path).parent.absolute()))  # as for python FILE.py
    found = runpy.run_path(path)
    agent = found.get(name) if name else found.get("agent", found.get(Path(path).stem))
    if not callable(agent):
        raise click.UsageError(f"{path} has no function {name or 'agent'!r}; say FILE.py:function")
    return agent


_SCRIPT_HELP = "FILE.py with a function agent or FILE, or FILE.py:function."
_SCRIPT: Any = {"required": True, "callback": _load_agent, "help": _SCRIPT_HELP}
agent_option = click.option("--agent-script", "agent_func", **_SCRIPT)
_SHOWN: Any = {"show_default": True}


@click.command("train")
@agent_option
@click.option("--data-id", required=True, help="What agl data upload printed.")
@click.option("--nworkers", default=-1, **_SHOWN, help="-1 for four per core.")
@click.option("--epochs", default=1, **_SHOWN)
@click.option("--batch-size", default=32, **_SHOWN, help="Tasks per update.")
@url_option
def train(client: "Client", **options: Any) -> None:
    """Train at a training server, with an agent function of (resource, task) that runs here."""
    _print(vars(client.train(**options)))


@click.command("evaluate")
@agent_option
@click.option("--test", "test_file", required=True, help="File of tasks to measure with.")
@click.option("--checkpoint", help="A checkpoint, or base.  [default: latest, if there is one]")
@click.option("--nworkers", default=4, **_SHOWN, help="-1 for four per core.")
@url_option
def evaluate(client: "Client", **options: Any) -> None:
    """Run each task once at a training server's model, with an agent function that runs here."""
    _print(vars(client.evaluate(**options)))


@click.group("jobs")
def jobs() -> None:
    """Your jobs at a training server."""


@jobs.command("list")
@json_option
@url_option
def list_jobs(client: "Client", as_json: bool) -> None:
    """Print your jobs, the oldest first."""
    about = ("id", "kind", "state", "step", "steps", "error")
    _print([{name: one[name] for name in about} for one in client.jobs()], as_json)


@jobs.command("stop")
@click.argument("job")
@url_option
def stop_job(client: "Client", job: str) -> None:
    """Stop a job; its checkpoints stay, and attach takes it up again."""
    client.stop(job)


@jobs.command("attach")
@click.argument("job")
@agent_option
@click.option("--nworkers", default=-1, **_SHOWN, help="-1 for four per core.")
@url_option
def attach(client: "Client", **options: Any) -> None:
    """Take up a job that was left, failed or was stopped, with an agent that runs here."""
    _print(vars(client.attach(**options)))


@jobs.command("download")
@click.argument("job")
@click.option("--output", required=True, help="Folder for the run.")
@url_option
def download_run(client: "Client", job: str, output: str) -> None:
    """Write a job's run into a folder, for agl ui, agl ledger and all that read runs."""
    client.download_run(job, output)


_ONE: Any = {"default": "latest", "show_default": True}
_FORMS = "How the files are written: huggingface, safetensors (the same), or onnx."
_ONE_HELP = "From agl model list, or latest or best of the newest job."
checkpoint_option = click.option("--checkpoint", **_ONE, help=_ONE_HELP)
output_option = click.option("--output", required=True, help="Folder for the checkpoint.")


@click.command("list")
@json_option
@url_option
def list_models(client: "Client", as_json: bool) -> None:
    """Print your checkpoints at a training server."""
    jobs = client.jobs()
    names = [(f"{job['id']}/{name}", job) for job in jobs for name in job["checkpoints"]]
    rows = [{"checkpoint": name, "best": name.endswith(f"/{of['best']}")} for name, of in names]
    _print(rows, as_json)


@click.command("download")
@checkpoint_option
@output_option
@click.option("--format", "form", default="huggingface", help=_FORMS)
@url_option
def download(client: "Client", output: str, checkpoint: str, form: str) -> None:
    """Write a checkpoint of a training server into a folder, as transformers and vLLM load it."""
    client.download_model(output, checkpoint, form)


@click.command("serve", context_settings={"ignore_unknown_options": True})
@checkpoint_option
@output_option
@url_option
@click.argument("options", nargs=-1, metavar="[OPTION OF agl serve]...")
def serve(client: "Client", output: str, checkpoint: str, options: tuple[str, ...]) -> None:
    """Download a checkpoint of a training server, and serve it here; see agl serve."""
    from agl.cli import cli

    client.download_model(output, checkpoint)
    cli.main(["serve", output, *options], standalone_mode=False)
