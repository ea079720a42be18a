"""``agl gateway``: serve the gateway until told to stop."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from agl.env import LightningEnvVar
from agl_http.commands import log_level_option, make_tracker, port_option, tracker_option
from agl_http.tokens import read_token, without_token

if TYPE_CHECKING:
    from pathlib import Path

    from agl_gateway.proxy import LLMProxy


def _model(text: str) -> dict[str, Any]:
    """An entry of a model list."""
    name, _, url = text.partition("=")
    if not name or not url:
        raise click.BadParameter(f"{text!r}: expected NAME=URL, as qwen=http://127.0.0.1:8000/v1")
    return {"model_name": name, "litellm_params": {"model": f"hosted_vllm/{name}", "api_base": url}}


def _limit(text: str) -> tuple[str, float]:
    """A limit of a budget."""
    name, _, number = text.partition("=")
    try:
        return name, float(number) if name == "cost" else int(number)
    except ValueError:
        raise click.BadParameter(f"{text!r}: expected LIMIT=NUMBER, as calls=1000") from None


@click.command("gateway")
@click.option("--host", default=None, help="Where to listen. [default: 127.0.0.1]")
@port_option(None, help="0 takes a free one. [default: 4848]")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME=URL",
    type=_model,
    help="A model and its OpenAI-compatible server; of one name, several are replicas. May be "
    "repeated.",
)
@click.option(
    "--model-key",
    envvar=LightningEnvVar.AGL_MODEL_API_KEY.value,
    show_envvar=True,
    help="API key of the servers of --model. The variable does not show in process lists.",
)
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    help="YAML with any options of the gateway: model_list, num_retries, callbacks ...",
)
@click.option(
    "--store",
    "store_url",
    metavar="URL",
    help="Store server in which calls are recorded; its admin's token is in AGL_SERVER_TOKEN.",
)
@click.option(
    "--token",
    "api_key",
    envvar=LightningEnvVar.AGL_GATEWAY_TOKEN.value,
    show_envvar=True,
    help="What agents send as API key. The variable does not show in process lists. One is made if "
    "none is given.",
)
@click.option("--open", is_flag=True, help="Ask for no key and no token; on loopback only.")
@click.option("--record", default=None, metavar="DIR", help="Write every answer of the backends.")
@click.option("--replay", default=None, metavar="DIR", help="Answer from a recording.")
@click.option(
    "--run-budget",
    multiple=True,
    metavar="LIMIT=NUMBER",
    type=_limit,
    help="calls, tokens or cost of all calls together. May be repeated.",
)
@click.option(
    "--attempt-budget",
    multiple=True,
    metavar="LIMIT=NUMBER",
    type=_limit,
    help="The same for each attempt.",
)
@click.option(
    "--processes",
    "num_processes",
    default=1,
    type=click.IntRange(1, 64),
    help="So many processes behind one port; each has one of its own after it, on loopback.",
)
@tracker_option
@log_level_option
def command(
    models: tuple[dict[str, Any], ...],
    model_key: str | None,
    config_file: str | None,
    store_url: str | None,
    trackers: tuple[str, ...],
    log_level: str,
    num_processes: int,
    **given: Any,
) -> None:
    """Serve model calls, and record each of them.

    Agents use http://HOST:PORT/v1 as the address of any OpenAI-compatible server, and
    http://HOST:PORT/rollout/ROLLOUT_ID/attempt/ATTEMPT_ID/v1 for calls that belong to an attempt.
    SIGTERM and Ctrl+C let calls in flight finish, and write what is pending. A replay ends by
    itself with exit code 1 when a request differs from the recording.
    """
    import asyncio
    from pathlib import Path

    from agl.utils.logs import setup_logging

    setup_logging(log_level.upper())
    options: dict[str, Any] = _read(Path(config_file)) if config_file else {}
    for budget in ("run_budget", "attempt_budget"):
        given[budget] = dict(given[budget]) or None
    options = {"port": 4848, **options, **{k: v for k, v in given.items() if v is not None}}
    options["tracker"] = make_tracker(trackers)
    for model in models if model_key else ():
        model["litellm_params"]["api_key"] = model_key
    options["model_list"] = [*(options.get("model_list") or []), *models]
    if not options["model_list"] and options.get("replay") is None:
        raise click.UsageError(
            "which models? give --model NAME=URL, or --config FILE with a model_list, or --replay"
        )
    from agl_gateway.proxy import LLMProxy

    proxy = LLMProxy(**options)
    greeting = _greeting(proxy, store_url)
    if proxy.api_key and not options.get("api_key"):
        greeting += f"\nagl gateway: API key {proxy.api_key}"
    if num_processes > 1:
        from agl_gateway.processes import fork

        proxy.processes = fork(num_processes, proxy.address, options, greeting)
    asyncio.run(_serve(proxy, store_url, greeting))


async def _serve(proxy: "LLMProxy", store_url: str | None, greeting: str) -> None:
    import asyncio

    from agl.errors import ConfigError, NotAllowedError, RunError, StoreError, is_away
    from agl_http.commands import stop_signal

    if store_url is not None:
        import agl

        store = agl.LightningStoreClient(store_url)
        try:
            await read_token(store, "")
        except NotAllowedError as error:
            raise ConfigError(
                f"--store {store.server_address}: a gateway needs an admin's address, or "
                f"AGL_SERVER_TOKEN, to look up the tokens of attempts: {error}"
            ) from None
        except StoreError as error:  # it is of a version without tokens
            if is_away(error):
                raise
    else:
        from agl.store.memory import InMemoryLightningStore

        store = InMemoryLightningStore()
    proxy.set_store(store)
    stop = proxy.processes.stop_signal() if proxy.processes else stop_signal()
    try:
        await proxy.start()
        if proxy.processes is None:
            click.echo(greeting, err=True)
        signalled = asyncio.ensure_future(stop.wait())
        differs = asyncio.ensure_future(proxy.replay_stopped())
        await asyncio.wait([signalled, differs], return_when=asyncio.FIRST_COMPLETED)
        is_different = differs.done()
        signalled.cancel()
        differs.cancel()
        click.echo("agl gateway: finishing calls", err=True)
    finally:
        await proxy.stop()
        await store.close()
    if is_different:
        raise RunError("the replay has stopped: a request differs from the recording, see above")


def _greeting(proxy: "LLMProxy", store_url: str | None) -> str:
    recorded = (
        f"recorded in {without_token(store_url)[0]}"
        if store_url
        else "not recorded: there is no --store"
    )
    names = proxy.model_names
    address = proxy.as_resource(model=names[0]).get_base_url()
    return f"agl gateway: {address} serves {', '.join(names)}; calls of attempts are {recorded}"


def _read(path: "Path") -> dict[str, Any]:
    """The options in a file, checked against the constructor."""
    from agl.errors import ConfigError
    from agl.plugins.schema import validate
    from agl_gateway.proxy import LLMProxy
    from agl_runs.config.overrides import parse_yaml

    try:
        values = parse_yaml(path.read_text(encoding="utf-8"), f"--config {path}")
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}") from None
    if not isinstance(values, Mapping):
        raise ConfigError(f"--config {path}: expected options of the gateway, as model_list: [...]")
    return validate(LLMProxy, values, f"{path}: gateway")
