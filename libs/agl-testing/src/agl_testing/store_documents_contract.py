"""The part of the store contract about documents, and about deleting rollouts."""

import asyncio
from typing import Any

import pytest

from agl.errors import (
    ConflictError,
    InvalidQueryError,
    InvalidRecordError,
    ReplacedError,
    UnknownRecordError,
)
from agl.store.answers import FENCE, Fence
from agl.store.base import LightningStore
from agl.types import Document, NamedResources, PromptTemplate
from agl_testing.store_steps import ids_of, span_of, work_of


def document(key: str, body: Any = None, **about: Any) -> Document:
    """A document of the kind ``note``."""
    given: dict[str, Any] = {"kind": "note", "key": key, "body": body, **about}
    return Document(**given)


class StoreDocumentsContract:
    """Documents, apart from spans, and what is deleted with a rollout."""

    async def test_document_comes_back_as_it_was_put(self, store: LightningStore) -> None:
        rollout = await store.enqueue_rollout("task")
        body: Any = {"text": "é\n", "numbers": [1, 2.5, None, True], "nothing": {}}
        put = [
            document("b", body, version=7, rollout_id=rollout.rollout_id),
            document("a", ["list"]),
            document("a", "of another kind", kind="other"),
        ]
        await store.put_documents(put)
        assert list(await store.query_documents("note")) == [put[1], put[0]]
        assert list(await store.query_documents("other")) == [put[2]]
        await store.put_documents([])
        assert (await store.query_documents("nobody's")).total == 0

    async def test_document_is_replaced_by_no_lower_version(self, store: LightningStore) -> None:
        await store.put_documents([document("a", 1, version=2), document("b", 1)])
        await store.put_documents([document("a", 2, version=2)])  # the answer was lost, say
        await store.put_documents([document("a", "late", version=1), document("b", 2, version=3)])
        assert [one.body for one in await store.query_documents("note")] == [2, 2]

    async def test_document_changed_by_another_is_refused(self, store: LightningStore) -> None:
        await store.put_documents([document("a", 1, expect=0)])
        for expect in (0, 2):
            with pytest.raises(ConflictError, match=r"'a' of kind 'note': version 1 is stored"):
                await store.put_documents([document("b"), document("a", 2, expect=expect)])
        await store.put_documents([document("a", 3, version=9, expect=1)])
        await store.put_documents([document("a", 4, version=2, expect=9)])
        (stored,) = await store.query_documents("note")
        assert (stored.body, stored.version, stored.expect) == (4, 2, None)

    async def test_of_writers_at_once_one_is_kept(self, store: LightningStore) -> None:
        puts = [store.put_documents([document("a", n, expect=0)]) for n in range(5)]
        done = await asyncio.gather(*puts, return_exceptions=True)
        assert sorted(type(one).__name__ for one in done) == ["ConflictError"] * 4 + ["NoneType"]
        (stored,) = await store.query_documents("note")
        assert done[stored.body] is None

    async def test_documents_are_put_all_or_none(self, store: LightningStore) -> None:
        with pytest.raises(UnknownRecordError, match="ro-none"):
            await store.put_documents([document("a"), document("b", rollout_id="ro-none")])
        with pytest.raises(InvalidRecordError):
            await store.put_documents([document("a"), document("b", float("nan"))])
        assert (await store.query_documents("note")).total == 0

    async def test_query_documents(self, store: LightningStore) -> None:
        one, two = [(await store.enqueue_rollout(number)).rollout_id for number in range(2)]
        put = [
            document("x/1", rollout_id=one),
            document("x/2", rollout_id=two),
            document("x0", rollout_id=two),
            document("y%"),
            document("y_"),
        ]
        await store.put_documents(put[::-1])

        async def found(**options: Any) -> list[int]:
            return [put.index(each) for each in await store.query_documents("note", **options)]

        assert await found() == [0, 1, 2, 3, 4]
        assert await found(key_in=["y_", "x/1", "none"]) == [0, 4]
        assert await found(key_in=[]) == []
        assert await found(key_prefix="x/") == [0, 1]
        assert await found(key_prefix="y%") == [3]
        assert await found(rollout_id_in=[two, "ro-none"]) == [1, 2]
        assert await found(rollout_id_in=[]) == []
        assert await found(key_prefix="x", rollout_id_in=[two], limit=1) == [1]
        assert await found(after="x/2", limit=2) == [2, 3]
        assert await found(after="x9") == [3, 4]
        assert (await store.query_documents("note", limit=2)).total == 5
        assert (await store.query_documents("note", limit=2, after="x/2")).total == 5
        assert (await store.query_documents("note", after="y_")).total == 5
        with pytest.raises(InvalidQueryError, match="limit"):
            await store.query_documents("note", limit=0)

    async def test_documents_are_deleted(self, store: LightningStore) -> None:
        await store.put_documents([document(key) for key in "abc"])
        await store.put_documents([document("a", kind="other")])
        assert await store.delete_documents("note", ["a", "c", "none"]) == 2
        assert [one.key for one in await store.query_documents("note")] == ["b"]
        assert (await store.query_documents("other")).total == 1
        await store.put_documents([document("a", expect=0)])

    async def test_writer_that_was_replaced_writes_nothing(self, store: LightningStore) -> None:
        """See ``Fence``: a store looks at it before it writes."""
        text: NamedResources = {"p": PromptTemplate(template="x", engine="f-string")}
        fence = Document(kind="a fence", key="é/1", body="a newer one has taken over")
        token = FENCE.set(Fence("a fence", "é/1", 1))
        try:
            await store.enqueue_rollout(1)
            await store.put_documents([fence])
            rollout = await store.enqueue_rollout(1)
            await store.put_documents([fence.model_copy(update={"version": 2})])
            for write in (
                lambda: store.enqueue_rollout(2),
                lambda: store.start_rollout(2),
                lambda: store.update_rollout(rollout.rollout_id, status="cancelled"),
                lambda: store.put_documents([document("a")]),
                lambda: store.delete_documents("a fence", ["é/1"]),
                lambda: store.delete_rollouts([rollout.rollout_id]),
                lambda: store.add_resources(text),
                lambda: store.update_resources("rs-1", text),
            ):
                with pytest.raises(ReplacedError, match="newer one has taken over"):
                    await write()
            assert (await store.query_rollouts())[1] == rollout
        finally:
            FENCE.reset(token)
        assert not await store.query_resources()
        assert (await store.query_rollouts()).total == 2
        await store.put_documents([document("a")])

    async def test_writer_that_was_replaced_claims_nothing(self, store: LightningStore) -> None:
        await store.put_documents([document("k", kind="a fence", version=2)])
        token = FENCE.set(Fence("a fence", "k", 1))
        try:
            with pytest.raises(ReplacedError):
                await store.dequeue_rollout()  # from an empty queue, too
        finally:
            FENCE.reset(token)

    async def test_kind_and_key_are_text_without_nul(self, store: LightningStore) -> None:
        await store.put_documents([document("a")])
        for about in ({"key": "a\0b"}, {"kind": "note\0b"}, {"key": "\ud800"}, {"kind": "\ud800"}):
            with pytest.raises(InvalidRecordError):
                await store.put_documents([document("b"), document("a").model_copy(update=about)])
        assert await store.delete_documents("note", ["a\0b"]) == 0
        assert not await store.query_documents("note", key_in=["a\0b"])
        assert [one.key for one in await store.query_documents("note")] == ["a"]

    async def test_who_waits_for_a_deleted_rollout_is_woken(self, store: LightningStore) -> None:
        gone, other = [await store.start_rollout(n) for n in range(2)]
        ids = [gone.rollout_id, other.rollout_id]
        wait = asyncio.create_task(store.wait_for_rollouts(rollout_ids=ids))
        alone = asyncio.create_task(store.wait_for_rollouts(rollout_ids=ids[:1]))
        await asyncio.sleep(0.2)
        await store.delete_rollouts(ids[:1])
        assert await asyncio.wait_for(alone, 10.0) == []
        assert not wait.done()
        await store.update_attempt(other.rollout_id, "latest", status="succeeded")
        found = await asyncio.wait_for(wait, 10.0)
        assert [one.rollout_id for one in found] == ids[1:]

    async def test_worker_of_a_deleted_rollout_is_released(self, store: LightningStore) -> None:
        first, second, other = [
            await store.start_rollout(n, worker_id=name) for n, name in enumerate("wwv")
        ]
        await store.delete_rollouts([second.rollout_id])
        assert await work_of(store, "w") == ("busy", *ids_of(first))
        await store.delete_rollouts([first.rollout_id])
        assert await work_of(store, "w") == ("idle", None, None)
        assert await work_of(store, "v") == ("busy", *ids_of(other))

    async def test_rollouts_are_deleted_with_all_they_own(self, store: LightningStore) -> None:
        other, held = await _hold(store, "other"), await _hold(store, "mine")
        latest = await store.add_resources({"p": PromptTemplate(template="latest")})
        spans_before = (await store.statistics()).get("total_spans")
        expected = {"resources": 1, "rollouts": 2, "attempts": 1, "documents": 1, "spans": 1}
        gone = [*held[:2], "ro-none"]
        assert await store.delete_rollouts(gone, only_count=True) == expected
        assert await store.get_rollout_by_id(held[0]) is not None
        assert await store.delete_rollouts(gone) == expected
        assert await store.delete_rollouts(gone) == dict.fromkeys(expected, 0)
        assert [one.rollout_id for one in await store.query_rollouts()] == other[:2]
        assert not (await store.query_spans(held[0])).items
        # A span without its attempt is seen by nobody, and takes its room for ever.
        spans_now = (await store.statistics()).get("total_spans")
        assert spans_before is None or spans_now == spans_before - 1
        assert [one.rollout_id for one in await store.query_documents("note")] == [other[0]]
        kept = [one.resources_id for one in await store.query_resources()]
        assert kept == [other[2], latest.resources_id]
        # What was queued is claimed by nobody, and what is left goes on.
        claimed = await store.dequeue_many_rollouts(limit=5)
        assert [one.rollout_id for one in claimed] == [other[1]]
        more = await store.enqueue_rollout("more")
        assert more.rollout_id not in (*held, *other)
        # An imported snapshot is never the latest, and so does not let the latest be deleted.
        await store.update_resources("imported/x", latest.resources)
        assert (await store.delete_rollouts([more.rollout_id]))["resources"] == 0
        assert await store.get_latest_resources() == latest


async def _hold(store: LightningStore, name: str) -> list[str]:
    """Put an ended rollout and a queued one into the store; their ids, and their resources'."""
    resources = await store.add_resources({"p": PromptTemplate(template=name)})
    started = await store.start_rollout("task", resources_id=resources.resources_id)
    await store.add_span(span_of(started))
    await store.update_attempt(started.rollout_id, "latest", status="succeeded")
    await store.put_documents([document(name, rollout_id=started.rollout_id)])
    queued = await store.enqueue_rollout("next", resources_id=resources.resources_id)
    return [started.rollout_id, queued.rollout_id, resources.resources_id]
