"""Checkpoints as ONNX: optimum's command converts them, of any environment that is on PATH."""

import shutil
import subprocess
from pathlib import Path

from agl_service.errors import InvalidConfigError, TrainingError


def onnx_exporter() -> str:
    """The path of ``optimum-cli``; an ``InvalidConfigError`` where there is none."""
    if (found := shutil.which("optimum-cli")) is None:
        raise InvalidConfigError(
            "format='onnx' needs optimum-cli, and there is none on PATH. It takes an older "
            "transformers than agl does, so give it an environment of its own: pip install "
            "'optimum-onnx[onnxruntime]' onnxscript there, and put its bin folder last on PATH"
        )
    return found


def export_onnx(exporter: str, model: str, output_dir: str) -> None:
    """Convert a folder of ``transformers``; what optimum says of it goes to the terminal."""
    task = ["--task", "text-generation-with-past"]
    done = subprocess.run([exporter, "export", "onnx", "--model", model, *task, output_dir])
    if done.returncode:
        raise TrainingError(
            f"optimum-cli ended with code {done.returncode}, for the reason above. Download the "
            "model as huggingface, and convert it as optimum's documentation says"
        )
    for file in Path(model).iterdir():  # an older transformers does not read each tokenizer
        if file.suffix != ".safetensors" and not Path(output_dir, file.name).exists():
            shutil.copy(file, output_dir)
