"""Gather what `run.py` needs on a machine that has a GPU and no network.

    python benchmarks/gpu/pack.py FOLDER

Such a machine has Python 3.12 with torch, transformers, peft and accelerate, and what these
require. FOLDER gets the rest, in three folders so that each can be sent by itself: ``1`` has the
wheels of what agl requires, and the tokenizer of SmolLM2; ``2`` and ``3`` have the halves of the
wheel of SmolLM2. Needs pip, which reaches an index, and agl-torch.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
THERE = ("torch==2.11.0", "transformers==5.17.0", "peft", "accelerate")
PACKAGES = ("core", "libs/agl-records", "libs/agl-models", "libs/agl-learning")
PACKAGES += ("plugins/agl-adapters", "plugins/agl-gateway", "plugins/agl-torch")
MORE = ("openai>=2,<4", "gguf>=0.17", "filelock>=3.16")
"""What the agent asks with; what converts SmolLM2."""
TARGET = ["--only-binary=:all:", "--python-version=3.12", "--implementation=cp"]
TARGET += ["--platform=manylinux2014_x86_64"]
TARGET += [f"--platform=manylinux_2_{number}_x86_64" for number in range(17, 36)]


def pip(*arguments: str) -> str:
    """What pip prints."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def resolved(requirements: list[str]) -> dict[str, str]:
    """Name -> version of all that pip would install for them on such a machine."""
    given = ["install", "--quiet", "--dry-run", "--ignore-installed", "--report=-", *TARGET]
    with tempfile.TemporaryDirectory() as unused:
        report = json.loads(pip(*given, f"--target={unused}", *requirements))
    found = [one["metadata"] for one in report["install"]]
    return {one["name"].lower().replace("_", "-"): one["version"] for one in found}


def main() -> None:
    """Gather, and say how much it is."""
    from transformers import AutoTokenizer

    from agl_testing.models import WHEEL, smollm2

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    first, *halves = (folder / name for name in "123")
    for one in (first, *halves):
        one.mkdir(parents=True, exist_ok=True)
    files = [TREE / package / "pyproject.toml" for package in PACKAGES]
    wanted = {
        line
        for file in files
        for line in tomllib.loads(file.read_text("utf-8"))["project"]["dependencies"]
        if not line.startswith(("agl-", "torch", "transformers"))
    }
    is_there = resolved(list(THERE))
    needed = resolved([*sorted(wanted), *MORE])
    lines = [f"{name}=={needed[name]}" for name in sorted({*needed} - {*is_there})]
    pip("download", "--quiet", "--no-deps", *TARGET, f"--dest={first / 'wheels'}", *lines)
    apart = first / "wheels-8bit"  # transformers imports it wherever it finds it
    pip("download", "--quiet", "--no-deps", *TARGET, f"--dest={apart}", "torchao>=0.14")
    AutoTokenizer.from_pretrained(smollm2()).save_pretrained(first / "tokenizer")
    with tempfile.TemporaryDirectory() as place:
        pip("download", "--quiet", "--no-deps", f"--dest={place}", WHEEL)
        (wheel,) = Path(place).iterdir()
        whole = wheel.read_bytes()
        middle = len(whole) // 2
        for half, part in zip(halves, (whole[:middle], whole[middle:]), strict=True):
            (half / f"{wheel.name}.{half.name}").write_bytes(part)
    for one in (first, *halves):
        size = sum(path.stat().st_size for path in one.rglob("*") if path.is_file())
        print(f"{one}: {size / 2**20:.1f} MiB")
    print(", ".join(lines))


if __name__ == "__main__":
    main()
