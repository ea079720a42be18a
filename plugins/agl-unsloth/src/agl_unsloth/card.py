"""The model card of a version: which run made it of what, and how well that went."""

import json
from pathlib import Path
from typing import Any

from agl_models.versions import Version


def write_card(
    folder: Path,
    *,
    base: Version,
    number: int,
    run: dict[str, Any],
    data: dict[str, Any],
    training: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Write ``README.md`` as hubs read it.

    Args:
        folder: Of the version.
        base: What it was trained from.
        number: Of the version.
        run: Algorithm, folder and id of the run.
        data: What was trained on: counts, rewards, where it lies.
        training: Metrics of the training.
        options: Of the training.
    """
    tables = {"Run": run, "Data": data, "Training": training, "Options": options}
    sections = "\n\n".join(f"## {title}\n\n{_table(values)}" for title, values in tables.items())
    title = f"{run['algorithm']} version {number}"
    text = f"""---
base_model: {json.dumps(base.ref)}
library_name: transformers
pipeline_tag: text-generation
tags: [agl, {run["algorithm"]}]
---

# {title}

Made by agl from version {base.number} ({base.ref}), on rollouts of the agent itself.

{sections}
"""
    (folder / "README.md").write_text(text, encoding="utf-8")


def _table(values: dict[str, Any]) -> str:
    rows = [f"| {name} | {_cell(value)} |" for name, value in values.items() if value is not None]
    return "\n".join(["| | |", "|---|---|", *rows])


def _cell(value: Any) -> str:
    shown = f"{value:.6g}" if isinstance(value, float) else str(value)
    return shown.replace("|", "\\|").replace("\n", " ")
