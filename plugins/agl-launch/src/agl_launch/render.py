"""The files that clusters read: templates beside this module, and what is filled in."""

import re
import shlex
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agl.errors import ConfigError
from agl_runs.config.file import ConfigFile, load_config
from agl_runs.secrets import redact

TEMPLATES = {
    "slurm": "slurm.sh",
    "kubernetes": "kubernetes.yaml",
    "skypilot": "skypilot.yaml",
    "ray": "rayjob.yaml",
}
SET_BY_THE_LAUNCHER = ("role", "server_host", "server_port", "token")
"""Options of strategy ``cs``, which go before the environment that a launched process has."""


class _Template(string.Template):
    """With ``%{name}``, as ``$`` is the shell's."""

    delimiter = "%"


def render(system: str, path: Path, overrides: Sequence[str], options: Mapping[str, Any]) -> str:
    """The text of the file that starts a run.

    Args:
        system: ``slurm``, ``kubernetes`` or ``skypilot``.
        path: The run's configuration.
        overrides: As for ``agl run``; they become part of the command in the file.
        options: Those of ``agl launch``.

    Raises:
        ConfigError: The configuration cannot be read, or cannot be launched so; or a secret would
            stand in the file.
    """
    file = load_config(path, overrides)
    kind = _check_strategy(file, system)
    for override in overrides:
        key, _, value = override.partition("=")
        if redact(value, key.rpartition(".")[2]) != value:
            raise ConfigError(
                f"agl launch: {key}: a secret would stand in the file. Give '{key}=${{NAME}}', in "
                "single quotes, and set the variable NAME where the run runs"
            )
    gpu_type, _, gpus = options["gpus"].rpartition(":")
    if not gpus.isdigit() or (system == "skypilot" and gpus != "0" and not gpu_type):
        expected = "TYPE:NUMBER, as H100:1" if system == "skypilot" else "a number, or TYPE:NUMBER"
        raise ConfigError(f"agl launch: --gpus {options['gpus']!r}: expected {expected}")
    minutes = round(options["hours"] * 60)
    if system == "slurm" and minutes * 60 <= options["grace"] + 60:
        raise ConfigError(
            f"agl launch: --hours {options['hours']:g} is too short for --grace "
            f"{options['grace']}: Slurm may send the signal a minute early, so the job would do "
            "nothing but queue again. Give more hours, or less grace"
        )
    store = file.config.store
    store = str(store.get("type") if isinstance(store, dict) else store)
    is_served = store != "client" and not store.startswith("http")
    if not is_served and system != "slurm":
        raise ConfigError(
            f"agl launch: {file.where('store')} is another server's, which does not tell runners "
            "that the run has ended. Leave it out, or give postgresql://..., which the run serves"
        )
    name = re.sub(r"[^a-z0-9]+", "-", (options["name"] or path.resolve().parent.name).lower())
    said = re.findall(r"(?<!\$)\$\{(\w+)\}", f"{file.values}")
    variables = sorted({"AGL_SERVER_TOKEN", *said})
    config = path if system == "slurm" else Path(path.name)
    template = Path(__file__).parent / "templates" / TEMPLATES["ray" if kind == "ray" else system]
    return _Template(template.read_text(encoding="utf-8")).substitute(
        options,
        name=name.strip("-")[:40].strip("-") or "agl",
        folder=path.parent,
        run=shlex.join(["agl", "run", str(config), *overrides]),
        run_dir=file.config.run_dir or "agl-runs/slurm-$SLURM_JOB_ID",
        minutes=minutes,
        half=options["grace"] // 2,
        quarter=options["grace"] // 4,
        gpus=gpus,
        gpu_line=f"#SBATCH --gpus-per-node={options['gpus']}\n" if gpus != "0" else "",
        accelerators=options["gpus"] if gpus != "0" else "null",
        managed=int(is_served),
        literals=" ".join(f'--from-literal={one}="${one}"' for one in variables),
        secrets="".join(f"  {one}: null\n" for one in variables),
        options=" ".join(f"--secret {one}" for one in variables),
    )


def _check_strategy(file: ConfigFile, system: str) -> str:
    """The strategy's name.

    Raises:
        ConfigError: What the launcher would start does not fit the strategy.
    """
    spec = file.config.strategy
    options: dict[str, Any] = spec if isinstance(spec, dict) else {"type": spec}
    kind = options.get("type", "cs")
    if kind != "cs" and (kind, system) != ("ray", "kubernetes"):
        raise ConfigError(
            f"agl launch: {file.where('strategy')} is {kind!r}. Expected 'cs', whose algorithm and "
            "runners are processes of several machines; or 'ray' with --k8s"
        )
    given = [one for one in SET_BY_THE_LAUNCHER if kind == "cs" and one in options]
    if given:
        raise ConfigError(
            f"agl launch: {file.where('strategy', given[0])}: each machine gets its own from the "
            "launched file, by a variable AGL_*. Leave it out"
        )
    return kind
