"""``agl merge``: write a model with its adapter added to it."""

from pathlib import Path

import click


@click.command("merge")
@click.argument("checkpoint", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="float32",
    show_default=True,
    help="Of the weights; to 16 bits they are rounded by chance.",
)
def command(checkpoint: Path, folder: Path, dtype: str) -> None:
    """Write to FOLDER the model whose adapter CHECKPOINT has, with the adapter added to it.

    CHECKPOINT is one of a run with lora_rank. What reads whole models alone can then load FOLDER;
    agl serve and the option model take CHECKPOINT as it is. A checkpoint without an adapter is
    whole already, and nothing is written.
    """
    from agl.cli.shared import note
    from agl.errors import ConfigError
    from agl_torch.adapter import ADAPTER
    from agl_torch.checkpoint import save_model
    from agl_torch.models import load_model, load_tokenizer

    is_adapter = (checkpoint / ADAPTER).exists()
    if not is_adapter and (checkpoint / "config.json").exists():
        note(f"{checkpoint} is whole already; serve it as it is: agl serve {checkpoint}")
        return
    if not is_adapter:
        raise ConfigError(
            f"{str(checkpoint)!r} is no checkpoint of a model: it has neither config.json nor an "
            f"adapter ({ADAPTER})"
        )
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{str(folder)!r} is there already; give a new folder")
    save_model(load_model(checkpoint, "cpu", "float32"), folder, dtype)
    load_tokenizer(None, checkpoint).save_pretrained(folder)
