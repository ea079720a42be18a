"""Runs in a store: documents, so that any store can keep them.

The document of a run is changed by its version: of two starts that begin at once, one reads again.
A second document counts the starts. It is the fence of a start's writes: see ``Fence``.
"""

import time
from typing import Any, Final, cast
from urllib.parse import quote

from agl.errors import ConflictError, InvalidTransitionError, UnknownRecordError
from agl.store.answers import Fence
from agl.store.base import LightningStore
from agl.store.queries import PAGE, each_record
from agl.types import Document
from agl_runs import records
from agl_runs.records import Run, RunOutcome, RunStart, canary_run

KIND: Final = "run"
_STARTS: Final = "run.starts"
RUN_ID: Final = "run_id"
_PROMPTS: Final = "prompts"
"""Kind of documents whose bodies name their run as ``run_id``, and which are deleted with it."""
_STEPS: Final = "step"
"""Kind of documents whose keys begin with the id of their run, and which are deleted with it."""
_LOST: Final = "ledger.lost"
"""Kind of documents whose keys are the ids of runs, and which are deleted with them."""


def fence_of(run_id: str, generation: int) -> Fence:
    """What lets a start of a run write until another start takes over."""
    return Fence(_STARTS, run_id, generation)


async def get_run(store: LightningStore, run_id: str) -> Run | None:
    """The run, or None."""
    found = await store.query_documents(KIND, key_in=[run_id])
    return run_of(found[0]) if found else None


async def query_runs(store: LightningStore) -> list[Run]:
    """All runs of a store, as first begun.

    A run whose process was killed is ``running`` until somebody says that it has died.
    """
    return runs_of(await store.query_documents(KIND))


def runs_of(documents: Any) -> list[Run]:
    """The runs that documents are, as first begun."""
    return sorted(map(run_of, documents), key=lambda run: run.create_time)


def run_of(document: Document) -> Run:
    """The run that a document is; one that cannot be read says so."""
    try:
        return Run.model_validate({**document.body, "run_id": document.key})
    except (ValueError, TypeError) as error:  # a newer agl wrote it
        body: Any = document.body
        about = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
        return Run(
            run_id=document.key,
            algorithm=str(about.get("algorithm") or ""),
            status="died",
            create_time=float(about.get("create_time") or 0.0),
            problem=f"run {document.key!r} cannot be read: {error}",
        )


async def begin_run(store: LightningStore, start: RunStart) -> Run:
    """Add a run, or begin the next generation of one that is stored.

    A stored run gets configuration, code, data and folder of this start. A generation that has not
    ended is taken for dead. Asked again with the same ``key``, nothing is begun. The answer's last
    generation is the one that was begun, and no other start has its number.

    Raises:
        InvalidTransitionError: The stored run is of another algorithm.
    """
    while True:
        found = await store.query_documents(KIND, key_in=[start.run_id])
        before = run_of(found[0]) if found else None
        run = records.begin(before, start, time.time())
        if run is before:
            return run
        fence = fence_of(run.run_id, run.generations[-1].number)
        text = records.replaced_by(run)
        starts = Document(kind=fence.kind, key=fence.key, body=text, version=fence.version)
        try:
            await store.put_documents([_document(run, found[0].version if found else 0), starts])
        except ConflictError:
            continue
        return run


async def end_run(
    store: LightningStore,
    run_id: str,
    generation: int,
    outcome: RunOutcome,
    error: str | None = None,
) -> Run:
    """Note how a generation ended; one that is not the last changes no status of the run.

    The first report counts, but for ``died`` (its process was seen to be gone): a generation that
    was thought dead may say itself how it ended.

    Raises:
        UnknownRecordError: No such run, or no such generation.
        InvalidTransitionError: No run ends so.
        ReplacedError: It would have finished, and another start has taken over.
    """
    while True:
        stored = await _find(store, run_id)
        before = run_of(stored)
        run = records.end(before, generation, outcome, error, time.time())
        if run is before or run.problem:  # else the body would be lost
            return run
        try:
            await store.put_documents([_document(run, stored.version)])
        except ConflictError:
            continue
        return run


async def delete_run(
    store: LightningStore, run_id: str, *, only_count: bool = False
) -> dict[str, int]:
    """Delete a run with its rollouts and what belongs to them, or only count: ``delete_rollouts``.

    Asked again after it was interrupted, it deletes the rest.

    Raises:
        UnknownRecordError: No such run.
        InvalidTransitionError: It runs. ``end_run`` tells the store that it has died.
    """
    run = run_of(await _find(store, run_id))
    if run.status == "running" and not only_count:
        number = run.generations[-1].number if run.generations else "unknown"
        raise InvalidTransitionError(
            f"run {run_id!r} is running (generation {number}) and cannot be deleted. Stop it "
            "first; where its process is gone, tell the store with end_run(..., 'died')"
        )
    ids = [
        one.rollout_id
        for name in (run_id, canary_run(run_id))
        async for one in each_record(store.query_rollouts, run=name)
    ]
    counts = await store.delete_rollouts(ids, only_count=only_count)
    after = None
    while page := await store.query_documents(_PROMPTS, after=after, limit=PAGE):
        keys = [one.key for one in page if one.body.get(RUN_ID) == run_id]
        counts["documents"] += len(keys)
        if not only_count:
            await store.delete_documents(_PROMPTS, keys)
        after = page[-1].key
    counts["documents"] += len(await store.query_documents(_LOST, key_in=[run_id]))
    prefix = f"{quote(run_id, safe='')}/"
    while page := await store.query_documents(_STEPS, key_prefix=prefix, limit=PAGE):
        counts["documents"] += page.total if only_count else len(page)
        if only_count:
            break
        await store.delete_documents(_STEPS, [one.key for one in page])
    if not only_count:
        for kind in (_LOST, _STARTS, KIND):
            await store.delete_documents(kind, [run_id])
    return counts


async def _find(store: LightningStore, run_id: str) -> Document:
    found = await store.query_documents(KIND, key_in=[run_id])
    if not found:
        raise UnknownRecordError(f"no run {run_id!r} in this store")
    return found[0]


def _document(run: Run, expect: int) -> Document:
    body = run.model_dump(mode="json", exclude={"problem"})
    return Document(kind=KIND, key=run.run_id, body=body, version=expect + 1, expect=expect)
