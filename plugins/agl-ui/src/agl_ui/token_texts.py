"""What tokens say, by the tokenizer that a run keeps beside its weights."""

import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from agl.types import Rollout
from agl_ui.places import Place

logger = logging.getLogger("agl.ui")
Texts = Callable[[str | None, Sequence[int]], list[str]]
"""Name of a model, ids of its tokens -> what each says; empty where its tokenizer is not here."""


async def texts_of(place: Place, rollout: Rollout) -> Texts:
    """Find what decodes a rollout's tokens: a function that reads files, to call in a thread."""
    name = (rollout.metadata or {}).get("run")
    runs = await place.runs()
    run = next((one for one in runs if one.run_id == name), runs[0] if len(runs) == 1 else None)
    folder = run.folder if run else None

    def texts(model: str | None, ids: Sequence[int]) -> list[str]:
        return _decoded(_tokenizer(place, Path(folder), model), ids) if folder and ids else []

    return texts


def _tokenizer(place: Place, folder: Path, model: str | None) -> Any:
    """The newest in the folder of a run, of this model where there are several; None for none."""
    files = [*folder.rglob("tokenizer.json")]
    files = [one for one in files if model in one.parts] or files
    if not files:
        return None
    newest = max(files, key=lambda one: one.stat().st_mtime_ns)
    known: dict[tuple[Path, int], Any] = place.memory.setdefault("tokenizers", {})
    key = (newest, newest.stat().st_mtime_ns)
    if key not in known:
        try:
            from tokenizers import Tokenizer
        except ModuleNotFoundError:  # as agl-ui[tokens] is not installed
            return None
        try:
            known[key] = Tokenizer.from_file(str(newest))
        except Exception as error:  # its only kind
            logger.warning("%s is no tokenizer: %s", newest, error)
            known[key] = None
    return known[key]


def _decoded(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    if tokenizer is None or not 0 <= min(ids) <= max(ids) < 2**32:
        return []

    def decode(*some: int) -> str:
        return tokenizer.decode(some, skip_special_tokens=False)

    # Each behind the one before: at a beginning, decoders leave blanks away.
    both = pairwise(ids)
    return [decode(ids[0]), *(decode(one, two)[len(decode(one)) :] for one, two in both)]
