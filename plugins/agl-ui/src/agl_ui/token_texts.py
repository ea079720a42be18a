"""What tokens say, by the tokenizer that a run keeps beside its weights."""

import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from agl.types import Rollout
from agl_ui.data_sources import DataSource

logger = logging.getLogger("agl.ui")
Texts = Callable[[str | None, Sequence[int]], list[str]]
"""Name of a model, ids of its tokens -> what each says; empty where its tokenizer is not here."""
KEPT = ("checkpoints", "versions", "*/checkpoints")
"""Folders of a run in which tokenizers are looked for: another's file may say that ``/`` is one."""


async def texts_of(source: DataSource, rollout: Rollout) -> Texts:
    """Find what decodes a rollout's tokens: a function that reads files, to call in a thread."""
    name = (rollout.metadata or {}).get("run")
    runs = await source.runs()
    run = next((one for one in runs if one.run_id == name), runs[0] if len(runs) == 1 else None)
    folder = run.folder if run else None

    def texts(model: str | None, ids: Sequence[int]) -> list[str]:
        if not folder or not ids:
            return []
        try:
            return _decoded(_tokenizer(source, Path(folder), model), ids)
        except BaseException as error:  # a broken file makes the library panic
            logger.warning("tokens of %s are shown as numbers: %s", folder, error)
            return []

    return texts


def _tokenizer(source: DataSource, folder: Path, model: str | None) -> Any:
    """The newest in the folder of a run, of this model where there are several; None for none."""
    found = (
        file for kept in KEPT for one in folder.glob(kept) for file in one.rglob("tokenizer.json")
    )
    files = {file: at for file in found if (at := _changed(file))}
    files = {file: at for file, at in files.items() if model in file.parts} or files
    if not files:
        return None
    known: dict[tuple[Path, int], Any] = source.memory.setdefault("tokenizers", {})
    key = newest, _ = max(files.items(), key=lambda item: item[1])
    if key not in known:
        try:
            from tokenizers import Tokenizer
        except ModuleNotFoundError:  # as agl-ui[tokens] is not installed
            return None
        known[key] = Tokenizer.from_file(str(newest))
    return known[key]


def _changed(file: Path) -> int:
    """When it was, in nanoseconds; 0 if a run that goes on has removed it meanwhile."""
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def _decoded(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    if tokenizer is None or not 0 <= min(ids) <= max(ids) < 2**32:
        return []

    def decode(*some: int) -> str:
        return tokenizer.decode(some, skip_special_tokens=False)

    # Each behind the one before: at a beginning, decoders leave blanks away.
    both = pairwise(ids)
    return [decode(ids[0]), *(decode(one, two)[len(decode(one)) :] for one, two in both)]
