"""What a run of verl alone, without agl, needs: prompts in a file, settings on the command line."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_prompts(path: str | Path, prompts: list[str], **columns: list) -> Path:
    """A parquet file that verl's own dataset reads: one chat prompt of one user message per row.

    Args:
        path: Of the file; its folder is made.
        prompts: The user's message of each row.
        columns: Further columns, each as long as ``prompts``.

    Raises:
        ValueError: A column has another length.
    """
    import pandas

    for name, column in columns.items():
        if len(column) != len(prompts):
            raise ValueError(
                f"write_prompts: column {name!r} has {len(column)} entries for "
                f"{len(prompts)} prompts"
            )
    rows = [
        {
            "data_source": "agl/test",
            "prompt": [{"role": "user", "content": prompt}],
            "ability": "test",
            "reward_model": {"style": "rule", "ground_truth": json.dumps(index)},
            "extra_info": {"index": index},
        }
        for index, prompt in enumerate(prompts)
    ]
    frame = pandas.DataFrame(rows).assign(**columns)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.to_parquet(path)
    return path


def as_hydra(config: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The settings as overrides for the command line of ``python -m verl.trainer.main_ppo``.

    Each begins with ``++``, as some keys are not in verl's files.
    """
    lines: list[str] = []
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            lines += as_hydra(value, f"{name}.")
        else:
            lines.append(f"++{name}={_hydra_value(value)}")
    return lines


def _hydra_value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ",".join(_hydra_value(item) for item in value) + "]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    if isinstance(value, Mapping):
        return "{}"
    return str(value)
