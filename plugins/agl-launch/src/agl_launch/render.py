"""The files that clusters read: templates beside this module, and what is filled in."""

import hashlib
import json
import os
import re
import shlex
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agl.cli.shared import note
from agl.errors import AglError, ConfigError
from agl_runs.config.file import ConfigFile, check_config, load_config
from agl_runs.config.overrides import parse_yaml
from agl_runs.secrets import redact
from agl_runs.training import new_run

TEMPLATES = {
    "slurm": "slurm.sh",
    "k8s": "kubernetes.yaml",
    "skypilot": "skypilot.yaml",
    "ray": "rayjob.yaml",
}
SET_BY_THE_LAUNCHER = {
    "cs": ("role", "server_host", "server_port", "token"),
    "ray": ("address", "server_host"),
}
"""Strategy -> its options that would go before what a launched process gets from its cluster."""
OF_ALGORITHM = "adapter", "algorithm", "gateway", "resources", "store", "train", "val"
"""Keys that runners do not use; the command of a runner replaces those that need secrets."""
LITERAL = ' --from-literal={0}="${0}"'
GPUS = {
    "slurm": (r"([\w.-]+:)?[0-9]+", "a number, or TYPE:NUMBER"),
    "k8s": (r"[0-9]+", "a number; write a nodeSelector for the type into the file"),
    "skypilot": (r"0|[\w.-]+:[0-9]+", "TYPE:NUMBER, as H100:1"),
}
"""System -> what it takes as GPUs, as a pattern and in words."""
OWN_RUN_DIR = 'run_dir="agl-runs/slurm-$SLURM_JOB_ID"'
WRITTEN_BY_US = "written by agl launch"
"""Words in the first two lines of each template."""
MOST_OF_NAME = 40
"""Kubernetes takes 63 letters, with what is put behind the name."""


class _Template(string.Template):
    """A template that writes ``%{name}``, because ``$`` is the shell's."""

    delimiter = "%"


def render(system: str, path: Path, overrides: Sequence[str], options: Mapping[str, Any]) -> str:
    """The text of the file that starts a run.

    Args:
        system: ``slurm``, ``k8s`` or ``skypilot``.
        path: The run's configuration.
        overrides: Those of ``agl run``; they become part of the command in the file.
        options: Those of ``agl launch``.

    Raises:
        AglError: ``agl run`` would refuse the configuration.
        ConfigError: It cannot be launched so; or a secret would stand in the file.
    """
    file = load_config(path, overrides)
    strategy = _strategy_options(file, system)
    kind = strategy["type"]
    for override in overrides:
        key, _, text = override.partition("=")
        value = parse_yaml(text, key)
        if redact(value, key.rpartition(".")[2]) != value:
            raise ConfigError(
                f"agl launch: {key}: a secret would stand in the file. Give '{key}=${{NAME}}', in "
                "single quotes, and set the variable NAME where the run runs"
            )
        if system != "slurm" and key == "run_dir":
            raise ConfigError(
                f"agl launch: run_dir: it is /runs/NAME of a volume under {system}. Leave it out"
            )
    pattern, expected = GPUS[system]
    if not re.fullmatch(pattern, options["gpus"], re.ASCII):
        raise ConfigError(f"agl launch: --gpus {options['gpus']!r}: expected {expected}")
    gpus = options["gpus"].rpartition(":")[2]
    if system == "slurm" and not options["hours"] * 3600 > options["grace"] + 60:  # nor NaN
        raise ConfigError(
            f"agl launch: --hours {options['hours']:g} is too short for --grace "
            f"{options['grace']}: Slurm may send the signal a minute early, so the job would do "
            "nothing but queue again. Give more hours, or less grace"
        )
    spec = file.config.store
    spec = spec if isinstance(spec, dict) else {"type": spec}
    store, on_claim = str(spec.get("type")), str(spec.get("path", "/runs/")).startswith("/runs/")
    if store == "memory" or not (on_claim or system == "slurm"):
        raise ConfigError(
            f"agl launch: {file.where('store')} ends with its process or machine, so that a job "
            "which starts again could not go on with its run. Leave it out: it is then a file in "
            "the run's folder"
        )
    is_served = store != "client" and not store.startswith("http")
    if not is_served and system != "slurm":
        raise ConfigError(
            f"agl launch: {file.where('store')} is another server's, which does not tell runners "
            "that the run has ended. Leave it out, or give postgresql://..., which the run serves"
        )
    if not options["no_check"]:
        _check(file, kind, options)
    name = re.sub(r"[^a-z0-9]+", "-", (options["name"] or path.resolve().parent.name).lower())
    name = re.sub(r"^-*(?=[0-9]|$)", "agl-", name).strip("-")
    if len(name) > MOST_OF_NAME:  # two that begin alike must stay two
        name = f"{name[: MOST_OF_NAME - 7]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
    variables = _variables(file.values)
    hidden = [one for one in OF_ALGORITHM if _variables(file.values.get(one))]
    replaced = [f"{one}={'memory' if one == 'store' else 'null'}" for one in hidden]
    of_runner = {key: value for key, value in file.values.items() if key not in hidden}
    words = [str(path), *overrides]
    if system != "slurm":  # it starts in the folder of the file
        words = [one if "=" in one else os.path.relpath(one, path.parent) for one in words]
    run_dir = file.values.get("run_dir")
    # A command in a block of YAML must be one line.
    if any("\n" in one for one in overrides):
        raise ConfigError("agl launch: an override has a line break, which the file cannot hold")
    template = Path(__file__).parent / "templates" / TEMPLATES["ray" if kind == "ray" else system]
    return _Template(template.read_text(encoding="utf-8")).substitute(
        options,
        image=json.dumps(options["image"]),  # which YAML reads as JSON does
        folder=json.dumps(str(path.parent)),
        name=name,
        run=shlex.join(["agl", "run", *words]),
        run_of_runner=shlex.join(["agl", "run", *words, *replaced]),
        run_dir=shlex.quote(f"run_dir={run_dir}") if run_dir else OWN_RUN_DIR,
        minutes=round(options["hours"] * 60) if system == "slurm" else 0,
        half=options["grace"] // 2,
        quarter=options["grace"] // 4,
        gpus=gpus,
        gpus_of_worker=gpus if (strategy.get("resources") or {}).get("gpu") else 0,
        gpu_line=f"#SBATCH --gpus-per-node={options['gpus']}\n" if gpus != "0" else "",
        accelerators=options["gpus"] if gpus != "0" else "null",
        managed=int(is_served),
        literals="".join(map(LITERAL.format, variables)),
        literals_of_runner="".join(map(LITERAL.format, _variables(of_runner))),
        secrets="".join(f"  {one}: null\n" for one in ("AGL_SERVER_TOKEN", *variables)),
        options=" ".join(f"--secret {one}" for one in ("AGL_SERVER_TOKEN", *variables)),
    )


def _variables(values: object) -> list[str]:
    """What stands as ``${NAME}`` in the values; each process has an AGL_SERVER_TOKEN anyway."""
    return sorted({*re.findall(r"(?<!\$)\$\{(\w+)\}", f"{values}")} - {"AGL_SERVER_TOKEN"})


def _strategy_options(file: ConfigFile, system: str) -> dict[str, Any]:
    """The strategy's type and options.

    Raises:
        ConfigError: What the launcher would start does not fit the strategy.
    """
    spec = file.config.strategy
    options = {"type": "cs", **(spec if isinstance(spec, dict) else {"type": spec})}
    kind = options["type"]
    if kind != "cs" and (kind, system) != ("ray", "k8s"):
        raise ConfigError(
            f"agl launch: {file.where('strategy')} is {kind!r}. Expected 'cs', whose algorithm and "
            "runners are processes of several machines; or 'ray' with --k8s"
        )
    for one in SET_BY_THE_LAUNCHER[kind]:
        if options.get(one) not in (None, "auto"):
            raise ConfigError(
                f"agl launch: {file.where('strategy', one)}: the launched file has its own for "
                "each process. Leave it out"
            )
    return options


def _check(file: ConfigFile, kind: str, options: Mapping[str, Any]) -> None:
    """Refuse what ``agl run`` refuses, and runners of Ray that fit on no worker of the file."""
    try:
        run_dir = new_run(file.config).folder or Path()
        strategy = check_config(file, run_dir=run_dir).build()["strategy"]
    except AglError:
        note("--no-check writes the file unchecked, as when a module is only in the image")
        raise
    if kind != "ray":
        return
    gpus = int(options["gpus"])
    room = {"cpu": options["cpus"], "memory": options["memory"] * 2**30, "gpu": gpus}
    for name, amount in strategy.resources.items():
        needed = amount * strategy.runners_per_actor
        if needed > room.get(name, 0):
            raise ConfigError(
                f"agl launch: {file.where('strategy', 'resources', name)}: an actor takes "
                f"{needed:g}, a worker of the file has {room.get(name, 0)}. Give more --cpus, "
                "--memory or --gpus; or --no-check, and change the workers in the file"
            )


def write(text: str, output: Path) -> None:
    """Write the text in the place of nothing, or of what was written so before.

    Raises:
        ConfigError: Another file is there, or the folder cannot be written.
    """
    try:
        begin = output.read_text("utf-8", "replace").split("\n", 2)[:2] if output.exists() else None
        if begin is not None and WRITTEN_BY_US not in " ".join(begin):
            raise ConfigError(
                f"agl launch: -o {str(output)!r} is there, and agl launch has not written it. "
                "Name another file"
            )
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"agl launch: -o {str(output)!r} cannot be written: {error}") from None
