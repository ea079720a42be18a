"""The accounts of rollouts, as a store keeps them: documents about rollouts, apart from spans.

What agents record cannot stand among them. The key of an account is its run, step, algorithm and
rollout, so that those of a step are read together; its version is the start that wrote it, so that
a late write of a start that was thought dead changes nothing.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, cast
from urllib.parse import quote

from agl.errors import NotSupportedError
from agl.store.base import LightningStore
from agl.types import Document
from agl_records.types import LedgerPart

KIND: Final = "ledger"
LOST: Final = "ledger.lost"
"""Of a run: when its accounts were last marked as lost, or as counting again."""
PAGE: Final = 2000
"""Accounts that are read at once; a page also counts all that there are."""


def _run(run: str | None) -> str:
    return f"{quote(run or '', safe='')}/"


def _step(step: int | None) -> str:
    return "-/" if step is None else f"{step:012d}/"


def _prefix(run: str | None, step: int | None) -> str:
    return "" if run is None else f"{_run(run)}{'' if step is None else _step(step)}"


async def put_parts(store: LightningStore, parts: Sequence[LedgerPart]) -> None:
    """Keep accounts of rollouts, all or none.

    One of the same rollout, run, algorithm and step takes the place of the one before, so that a
    write may be repeated; one of an earlier ``generation`` does not.

    Raises:
        UnknownRecordError: A rollout does not exist. Nothing was stored.
    """
    documents = [
        Document(
            kind=KIND,
            key=key_of(part.run, part.step, part.algorithm, part.rollout_id),
            body=part.model_dump(mode="json", exclude_defaults=True),
            version=part.generation + 1,
            rollout_id=part.rollout_id,
        )
        for part in parts
    ]
    if documents:
        await store.put_documents(documents)


def key_of(run: str | None, step: int | None, algorithm: str | None, rollout_id: str) -> str:
    """The key of the document of an account."""
    return f"{_run(run)}{_step(step)}{_run(algorithm)}{rollout_id}"


async def each_part(
    store: LightningStore,
    *,
    rollout_id_in: Sequence[str] | None = None,
    run: str | None = None,
    step: int | None = None,
    lost: bool | None = None,
) -> AsyncGenerator[LedgerPart]:
    """Accounts of rollouts, by run and step, read page by page; an empty list of ids matches none.

    With ``lost`` only those that the run went back behind; with False only those that count.
    """
    prefix = _prefix(run, step)
    after = None
    while True:
        try:
            found = await store.query_documents(
                KIND, key_prefix=prefix, rollout_id_in=rollout_id_in, after=after, limit=PAGE
            )
        except NotSupportedError:  # a store of 0.3
            return
        for document in found:
            part = _part(document)
            if step in (None, part.step) and lost in (None, part.lost):
                yield part
        if len(found) < PAGE:
            return
        after = found[-1].key


async def count_parts(
    store: LightningStore, *, run: str | None = None, step: int | None = None
) -> int:
    """How many accounts there are, of all runs, of one, or of a step of it."""
    try:
        found = await store.query_documents(KIND, key_prefix=_prefix(run, step), limit=1)
        return found.total
    except NotSupportedError:
        return 0


def _part(document: Document) -> LedgerPart:
    """An account; one that cannot be read says so."""
    about = {"rollout_id": document.rollout_id, "generation": document.version - 1}
    try:
        return LedgerPart.model_validate({**document.body, **about})
    except (ValueError, TypeError) as error:  # a newer agl wrote it
        body: Any = document.body
        known = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
        names = ("run", "algorithm", "step", "mode", "lost")
        plain = {name: known[name] for name in names if name in known}
        return LedgerPart.model_construct(**about, **plain, problem=str(error))
