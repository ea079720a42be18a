"""Operations on documents, resources and workers; see ``operations``."""

from collections.abc import Sequence
from typing import Any

from agl.errors import ConflictError, ReplacedError
from agl.store import rules
from agl.store.answers import Fence
from agl.store.engine import steps
from agl.store.engine.tables import Tables
from agl.store.queries import DocumentQuery, make_query
from agl.types import Document, NamedResources, ResourcesUpdate, Worker
from agl.utils.json_values import copy_of_changes, copy_of_record


def check_fence(tables: Tables, fence: Fence) -> None:
    """Raise a ``ReplacedError`` if another writer has taken over from this one."""
    kind, key, version = fence
    if tables.document_version(kind, key) > version:
        (stored,) = tables.query_documents(DocumentQuery(kind, [key]))
        raise ReplacedError(f"{stored.body}. Version {version} of {kind} writes nothing any more")


def put_documents(tables: Tables, now: float, documents: Sequence[Document]) -> None:
    """Keep documents whose version is not lower than the stored one."""
    for rollout_id in {one.rollout_id for one in documents if one.rollout_id is not None}:
        steps.find_rollout(tables, rollout_id)
    versions: dict[tuple[str, str], int] = {}
    kept: list[Document] = []
    for one in documents:
        steps.check_ids(kind=one.kind, key=one.key)
        place = one.kind, one.key
        if place not in versions:
            versions[place] = tables.document_version(*place)
        stored = versions[place]
        if one.expect is not None and one.expect != stored:
            raise ConflictError(
                f"document {one.key!r} of kind {one.kind!r}: version {stored} is stored, and its "
                f"writer expects {one.expect} (0 is none). Read it again, and put it with that"
            )
        if one.expect is not None or one.version >= stored:
            versions[place] = one.version
            kept.append(one)
    for one in kept:
        tables.save_document(one)


def update_resources(
    tables: Tables, now: float, resources_id: str, resources: NamedResources
) -> ResourcesUpdate:
    """Replace or make a snapshot."""
    steps.check_ids(resources_id=resources_id)
    old = tables.resources(resources_id)
    update = ResourcesUpdate(
        resources_id=resources_id,
        create_time=old.create_time if old else now,
        update_time=now,
        version=old.version + 1 if old else 1,
        resources=resources,
    )
    tables.save_resources(update)
    return update


def delete_documents(tables: Tables, now: float, kind: str, keys: Sequence[str]) -> int:
    """Delete documents of a kind; how many were there."""
    return tables.delete_documents(kind, keys)


def delete_rollouts(
    tables: Tables, now: float, rollout_ids: Sequence[str], only_count: bool = False
) -> dict[str, int]:
    """Delete rollouts, or count; who waits for one is woken, and who works on one is released."""
    counts = tables.delete_rollouts(rollout_ids, only_count=only_count)
    if not only_count:
        tables.effects.ended += rollout_ids
        gone = set(rollout_ids)
        for worker in tables.query_workers(make_query("workers")):
            if worker.current_rollout_id in gone:
                still_open = tables.open_attempt_of(worker.worker_id)
                tables.save_worker(rules.worker_after(worker, "failed", still_open, now))
    return counts


def update_worker(tables: Tables, now: float, worker_id: str, **changes: Any) -> Worker:
    """Note a heartbeat."""
    worker = steps.find_worker(tables, worker_id)
    worker = Worker.model_validate(
        {**worker.__dict__, **copy_of_changes(changes), "last_heartbeat_time": now}
    )
    tables.save_worker(worker)
    return copy_of_record(worker)
