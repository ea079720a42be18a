"""``agl merge``: write a model with its adapter added to it."""

from pathlib import Path

import click


@click.command("merge")
@click.argument("checkpoint", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Of the weights; to 16 bits they are rounded by chance.  [default: float32]",
)
def command(checkpoint: Path, folder: Path, dtype: str | None) -> None:
    """Write to FOLDER the model whose adapter CHECKPOINT has, with the adapter added to it.

    CHECKPOINT is one of a run with lora. What reads whole models alone can then load FOLDER;
    agl serve and the option model take CHECKPOINT as it is. A checkpoint without an adapter is
    whole already: without --dtype, nothing is written.
    """
    from agl.cli.shared import note
    from agl.errors import ConfigError
    from agl_learning.run.checkpoint import making
    from agl_torch.adapter import ADAPTER
    from agl_torch.checkpoint import save_model
    from agl_torch.models import load_model, load_tokenizer

    files = {path.name for path in checkpoint.iterdir() if path.is_file() and path.stat().st_size}
    is_whole = "config.json" in files and any(x.endswith((".safetensors", ".bin")) for x in files)
    if ADAPTER not in files and not is_whole:
        raise ConfigError(
            f"{str(checkpoint)!r} is no checkpoint of a model: it has neither config.json with "
            f"weights (*.safetensors) nor an adapter ({ADAPTER})"
        )
    if ADAPTER not in files and dtype is None:
        note(f"{checkpoint} is whole already; serve it as it is: agl serve {checkpoint}")
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{str(folder)!r} is there already; give a new folder")
    try:  # before the model is loaded
        folder.mkdir(parents=True, exist_ok=True)
        folder.rmdir()
    except OSError as error:
        raise ConfigError(f"cannot write to {str(folder)!r}: {error}") from error
    model, tokenizer = load_model(checkpoint, "cpu", "float32"), load_tokenizer(None, checkpoint)
    with making(folder, {}) as partial:
        save_model(model, partial, dtype or "float32")
        tokenizer.save_pretrained(partial)
