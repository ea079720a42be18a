"""Imports recorded rollouts, resources and rewards into a store.

The store gives each rollout a new id and keeps the old one in ``metadata["imported"]``, so that a
second import of the same file recognises what is there already.
"""

import asyncio
import hashlib
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from agl.emitter import PRIMARY_REWARD, reward_attributes
from agl.errors import ConfigError
from agl.semconv import AGL_ANNOTATION, MODEL_CALL_SPAN, ModelCallAttributes as Key
from agl.store.base import UNSET, LightningStore
from agl.store.queries import each_record
from agl.store.rules import ENDED, IMPORTED as NEVER_LATEST
from agl.types import Attributes, Failure, NamedResources, Span, TraceStatus
from agl.utils.otel import make_link_attributes
from agl_inspect.exchange.recorded import (
    FileRecord,
    RecordedCall,
    RecordedResource,
    RecordedReward,
    RecordedRollout,
    read_records,
)
from agl_learning.collect.task_order import digest
from agl_records.calls.reader import unread_spans
from agl_runs.config.resources import resources_of

ReadRecords = Callable[[Path], Iterator[tuple[str, FileRecord]]]
"""Reads the records of a file, each with where it stands."""
AT_ONCE = 64
"""Rollouts that are written at the same time."""
IMPORTED = "imported"


@dataclass
class Imported:
    """What an import did."""

    rollouts: int = 0
    known: int = 0
    """Rollouts that the store had already."""
    spans: int = 0
    resources: int = 0
    rewards: int = 0
    unread: list[str] = field(default_factory=list[str])
    """Why spans that look like model calls are not read, a sentence for each."""
    remarks: list[str] = field(default_factory=list[str])
    """What was not taken, or not as one might expect, a sentence for each."""


@dataclass(frozen=True)
class Known:
    """A rollout of elsewhere that the store has."""

    rollout_id: str
    has_ended: bool
    content: str | None
    """Digest of what was recorded, or of its input; None if nobody knows."""


@dataclass
class Importer:
    """Puts files into a store."""

    store: LightningStore
    progress: Callable[[Imported], None] = lambda done: None
    """Called after each batch with what was done so far."""
    done: Imported = field(default_factory=Imported)
    ids: dict[str, Known] = field(default_factory=dict[str, Known])
    """By their ids elsewhere."""

    async def look(self) -> None:
        """Learn what the store has already."""
        async for rollout in each_record(self.store.query_rollouts):
            origin = (rollout.metadata or {}).get(IMPORTED)
            if isinstance(origin, dict) and "id" in origin:
                content = origin.get("digest") or digest([rollout.input])
                has_ended = rollout.status in ENDED
                self.ids[origin["id"]] = Known(rollout.rollout_id, has_ended, content)

    def has(self, given_id: str) -> bool:
        """Whether a rollout of elsewhere has ended in the store."""
        return given_id in self.ids and self.ids[given_id].has_ended

    async def add(self, path: Path, read: ReadRecords = read_records) -> None:
        """Import a file; if something in it is wrong, a ``ConfigError`` and nothing is written."""
        rewards, resources, own = self._check(path, read)
        for rollout_id in rewards.keys() - own:
            if rollout_id not in self.ids and not await self.store.get_rollout_by_id(rollout_id):
                raise ConfigError(
                    f"{path}: a reward names the rollout {rollout_id!r}, which is neither in the "
                    "file nor in the store"
                )
        unnamed, new = None, dict[str, NamedResources]()
        for given_id, named in resources.items():
            own_id = given_id or f"rs-{hex_id(f'resources {named}')}"
            resources_id = f"{NEVER_LATEST}{own_id}"
            unnamed = unnamed or (None if given_id else resources_id)
            stored = await self.store.get_resources_by_id(resources_id)
            if stored is None:
                new[resources_id] = named
            elif stored.resources != named:
                raise ConfigError(
                    f"{path}: resources {given_id!r} are in the store with another content, as "
                    f"{resources_id!r}; rollouts name them. Give these another id"
                )
        for resources_id, named in new.items():
            await self.store.update_resources(resources_id, named)
            self.done.resources += 1
        rollouts = (one for _, one in read(path) if isinstance(one, RecordedRollout))
        while batch := list(itertools.islice(rollouts, AT_ONCE)):
            await asyncio.gather(
                *(self._add(one, rewards.get(one.id, []), unnamed, path) for one in batch)
            )
            self.progress(self.done)
        for rollout_id in rewards.keys() - own:
            await self._reward(rollout_id, rewards[rollout_id])

    def _check(
        self, path: Path, read: ReadRecords
    ) -> tuple[dict[str, list[RecordedReward]], "dict[str | None, NamedResources]", set[str]]:
        """Read all, keep rewards, resources and the ids of rollouts."""
        rewards: defaultdict[str, list[RecordedReward]] = defaultdict(list)
        resources: dict[str | None, NamedResources] = {}
        wanted: dict[str, str] = {}
        own: dict[str, int] = {}
        for where, record in read(path):
            match record:
                case RecordedRollout():
                    if record.id in own:
                        raise ConfigError(f"{where}: rollout {record.id!r} stands twice")
                    known = self.ids.get(record.id)
                    may_be = (None, _content(record), digest([record.input]))
                    if known is not None and known.content not in may_be:
                        raise ConfigError(
                            f"{where}: rollout {record.id!r} is in the store with another content, "
                            f"as {known.rollout_id!r}. Give this one another id"
                        )
                    own[record.id] = len(list(calls_of(record)))
                    if record.resources_id is not None:
                        wanted.setdefault(record.resources_id, where)
                case RecordedResource():
                    named = resources_of(record.named(), where) or {}
                    resources[record.id] = {**resources.get(record.id, {}), **named}
                case RecordedReward():
                    rewards[record.rollout_id].append(record)
        for resources_id, where in wanted.items():
            if resources_id not in resources:
                raise ConfigError(
                    f"{where}: its resources {resources_id!r} are not in the file; put them "
                    "there, or leave resources_id out"
                )
        for rollout_id, given in rewards.items():
            for reward in given:
                if reward.call is not None and not 0 <= reward.call < own.get(rollout_id, 0):
                    raise ConfigError(
                        f"{path}: a reward is for call {reward.call} of rollout {rollout_id!r}, "
                        f"which has {own.get(rollout_id, 0)} in this file"
                    )
        return rewards, resources, set(own)

    async def _add(
        self,
        one: RecordedRollout,
        rewards: Sequence[RecordedReward],
        unnamed: str | None,
        path: Path,
    ) -> None:
        """Add a rollout, or the rewards that an earlier import did not have of it.

        Without resources of its own it has ``unnamed``, those of the file's single resources.
        """
        if self.has(one.id):
            self.done.known += 1
            await self._reward(one.id, rewards)
            return
        # The store's own times are those of the import.
        begun = {} if one.start_time is None else {"start_time": one.start_time}
        rollout_id, attempt_id = await self.begin(
            one.id,
            {"from": path.name, "digest": _content(one), **begun},
            input=one.input,
            mode=one.mode,
            resources_id=f"{NEVER_LATEST}{one.resources_id}" if one.resources_id else unnamed,
            metadata=one.metadata,
        )
        spans = list(_spans(one, rewards, rollout_id, attempt_id))
        await self.store.add_many_spans(spans)
        error = one.error or "it failed where it was recorded"
        await self.end(one.id, rollout_id, attempt_id, error if one.status == "failed" else None)
        self.done.spans += len(spans)
        self.done.rewards += len(rewards)
        self.done.unread += unread_spans(spans)

    async def begin(
        self,
        given_id: str,
        origin: dict[str, Any],
        *,
        input: Any = None,
        metadata: dict[str, Any] | None = None,
        **fields: Any,
    ) -> tuple[str, str]:
        """Ids of the rollout and its attempt in the store.

        An import that was interrupted may have left it; spans that are there are skipped.
        ``origin`` says where and when it was recorded; what follows is for ``start_rollout``.
        """
        known = self.ids.get(given_id)
        if known is None:
            metadata = {**(metadata or {}), IMPORTED: {"id": given_id, **origin}}
            started = await self.store.start_rollout(input, metadata=metadata, **fields)
            self.ids[given_id] = Known(started.rollout_id, False, origin.get("digest"))
            return started.rollout_id, started.attempt.attempt_id
        latest = await self.store.get_latest_attempt(known.rollout_id)
        assert latest is not None  # it was started with one
        return known.rollout_id, latest.attempt_id

    async def end(self, given_id: str, rollout_id: str, attempt_id: str, error: str | None) -> None:
        """Give the attempt its status: failed, where there is an error."""
        status, failure = "succeeded", UNSET
        if error is not None:
            status = "failed"
            failure = Failure(boundary="agent", type="recorded", message=error)
        await self.store.update_attempt(rollout_id, attempt_id, status=status, error=failure)
        self.ids[given_id] = replace(self.ids[given_id], has_ended=True)
        self.done.rollouts += 1

    async def _reward(self, given_id: str, rewards: Sequence[RecordedReward]) -> None:
        rollout_id = self._stored_id(given_id)
        await self.reward_later(given_id, _reward_spans(rewards, rollout_id, ""))

    def _stored_id(self, given_id: str) -> str:
        return self.ids[given_id].rollout_id if given_id in self.ids else given_id

    async def reward_later(self, given_id: str, rewards: Iterable[Span]) -> None:
        """Give rewards to a rollout that the store has; the latest attempt gets them."""
        rollout_id = self._stored_id(given_id)
        attempt = await self.store.get_latest_attempt(rollout_id)
        if attempt is None:
            raise ConfigError(
                f"rollout {rollout_id!r} has no attempt yet that a reward could belong to"
            )
        # Given after the end, which only an algorithm's rewards may be.
        ids = {"rollout_id": rollout_id, "attempt_id": attempt.attempt_id, "writer": "algorithm"}
        added = await self.store.add_many_spans([one.model_copy(update=ids) for one in rewards])
        self.done.rewards += len(added)  # after the wait, since others add to it meanwhile


def _content(one: RecordedRollout) -> str:
    """Digest of all that was recorded of it."""
    return digest([to_jsonable_python(one, exclude_none=True)])


def calls_of(one: RecordedRollout) -> Iterator[RecordedCall]:
    """The model calls of a rollout that has no spans."""
    if one.output is not None:
        yield RecordedCall([{"role": "user", "content": one.input}], one.output)
    for number, message in enumerate(one.messages or []):
        if message.get("role") == "assistant":
            assert one.messages is not None
            yield RecordedCall(one.messages[:number], message)
    yield from one.calls or []


def _spans(
    one: RecordedRollout, rewards: Sequence[RecordedReward], rollout_id: str, attempt_id: str
) -> Iterator[Span]:
    """Calls in order, each followed by its rewards; those of the whole come last."""
    for span in one.spans or []:
        yield span.model_copy(update={"rollout_id": rollout_id, "attempt_id": attempt_id})
    trace_id = hex_id(f"trace {one.id}", 32)
    for number, call in enumerate(calls_of(one)):
        yield Span.from_attributes(
            name=MODEL_CALL_SPAN,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            trace_id=trace_id,
            span_id=hex_id(f"call {one.id}/{number}"),
            attributes=_call_attributes(call),
            start_time=call.start_time if call.start_time is not None else one.start_time,
            end_time=call.end_time,
            status=TraceStatus(status_code="ERROR" if call.error else "OK", description=call.error),
        )
        own = [reward for reward in rewards if reward.call == number]
        yield from _reward_spans(own, rollout_id, attempt_id)
    whole = [reward for reward in rewards if reward.call is None]
    yield from _reward_spans(whole, rollout_id, attempt_id)


def _call_attributes(call: RecordedCall) -> Attributes:
    answer = call.response
    if isinstance(answer, str):
        answer = {"role": "assistant", "content": answer}
    values = {
        Key.OPERATION: "chat",
        Key.AGENT_NAME: call.agent_name,
        Key.REQUEST_MODEL: call.model,
        Key.INPUT_MESSAGES: json.dumps(call.messages, ensure_ascii=False),
        Key.OUTPUT_MESSAGES: answer and json.dumps([answer], ensure_ascii=False),
        Key.TOOL_DEFINITIONS: json.dumps(call.tools) if call.tools else None,
        Key.FINISH_REASONS: [call.finish_reason] if call.finish_reason else None,
        Key.PROMPT_TOKEN_IDS: call.prompt_token_ids,
        Key.RESPONSE_TOKEN_IDS: call.response_token_ids,
        Key.RESPONSE_LOGPROBS: call.response_logprobs,
        Key.ERROR: call.error,
    }
    return {key.value: value for key, value in values.items() if value}


def _reward_spans(
    rewards: Iterable[RecordedReward], rollout_id: str, attempt_id: str
) -> Iterator[Span]:
    times: Counter[str] = Counter()
    for reward in rewards:
        name = PRIMARY_REWARD if reward.name is None else reward.name
        attributes = reward_attributes({name: reward.value})
        if reward.call is not None:
            target = hex_id(f"call {reward.rollout_id}/{reward.call}")
            attributes |= make_link_attributes({"span_id": target})
        if reward.comment is not None:
            attributes["comment"] = reward.comment
        about = f"{reward.call} {attributes}"
        times[about] += 1
        yield Span.from_attributes(
            name=AGL_ANNOTATION,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            span_id=hex_id(f"reward {rollout_id} {about} {times[about]}"),
            attributes=attributes,
        )


def hex_id(text: str, digits: int = 16) -> str:
    """The same id for the same thing, so that a second import adds nothing."""
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
