"""``agl serve``: serve a model until told to stop."""

from typing import Any

import click

from agl.env import LightningEnvVar
from agl_http.commands import host_option, port_option


@click.command("serve", context_settings={"show_default": True})
@click.argument("model")
@host_option(". Anything but loopback needs an API key.")
@port_option(8000)
@click.option(
    "--api-key",
    envvar=LightningEnvVar.AGL_SERVE_API_KEY.value,
    show_envvar=True,
    help="What clients must send. The variable does not show in process lists.",
)
@click.option("--name", "model_name", help="What requests must ask for.  [default: MODEL]")
@click.option("--tokenizer", help="Folder or name.  [default: MODEL]")
@click.option(
    "--max-model-tokens",
    type=click.IntRange(min=1),
    help="Prompt and answer together.  [default: the model's limit]",
)
@click.option(
    "--max-batch-size", default=64, type=click.IntRange(min=1), help="Sequences sampled at once."
)
@click.option(
    "--prefix-cache-mib",
    default=1024,
    type=click.IntRange(min=0),
    help="Memory for what was read of earlier conversations.",
)
@click.option("--seed", default=0, help="Seed for requests without one.")
@click.option(
    "--weights-version", default=0, type=click.IntRange(min=0), help="Version that answers have."
)
@click.option("--device", help="For example cuda:0.  [default: a GPU if there is one]")
@click.option(
    "--dtype", default="auto", help="Type of the weights; auto is bfloat16 on a GPU, else float32."
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Threads of a torch operation.  [default: left to torch; 1 with --deterministic]",
)
@click.option(
    "--deterministic",
    is_flag=True,
    help="An answer to a request with a seed depends on the request alone, to the last bit.",
)
def command(
    model: str,
    model_name: str | None,
    tokenizer: str | None,
    weights_version: int,
    device: str | None,
    dtype: str,
    threads: int | None,
    **options: Any,
) -> None:
    """Serve MODEL, a folder or a Hugging Face name, on an OpenAI-compatible address.

    It answers POST /v1/chat/completions, GET /v1/models and GET /health, and returns token ids to
    whoever asks for return_token_ids. SIGTERM and Ctrl+C let requests in progress finish.
    """
    import asyncio
    import gc

    from agl.cli.shared import note
    from agl.utils.logs import setup_logging
    from agl_http.commands import stop_signal
    from agl_http.server import bind
    from agl_learning.garbage import without_collections
    from agl_runs.options import check_place
    from agl_torch.models import (
        load_model,
        load_tokenizer,
        resolve_dtype,
        use_deterministic_algorithms,
    )

    setup_logging("INFO")
    with without_collections():
        import torch

        from agl_torch.server import InferenceServer, check_key

        # Before the model is loaded: what cannot be served shall be told at once.
        check_key(options["host"], options["api_key"])
        bind(options["host"], options["port"]).close()
        check_place("agl serve", model=model, tokenizer=tokenizer)
        if options["deterministic"]:
            use_deterministic_algorithms(threads)
        elif threads is not None:
            torch.set_num_threads(threads)
        server = InferenceServer(
            load_model(model, device, resolve_dtype(dtype, device)),
            load_tokenizer(tokenizer, model),
            model_name=model_name or model,
            **options,
        )
    server.weights.version = weights_version
    gc.freeze()  # looking for garbage among all of this would stop who samples

    async def serve() -> None:
        stop = stop_signal()
        with server:
            note(f"{server.model_name} is served at {server.url}")
            await stop.wait()

    asyncio.run(serve())
