"""What trackers are told of a run, and how it is read."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from agl.algorithm.base import Algorithm
from agl.emitter import find_final_reward
from agl.errors import AdapterError, NotSupportedError
from agl.store.base import LightningStore
from agl.types import AttemptedRollout, Rollout, public_failure, without_private
from agl.utils.json_values import to_json_text
from agl.utils.secrets import hide
from agl.utils.text import capped
from agl_records.calls.conversations import conversation
from agl_records.calls.reader import model_calls
from agl_records.final_rewards import FinalReward
from agl_runs.description import name_of, options_of
from agl_runs.secrets import redact
from agl_runs.store import get_run

LONGEST_TEXT = 20_000
"""Characters of one cell of a table."""


@dataclass(frozen=True)
class RunAbout:
    """A run, as its start is told."""

    run_id: str
    generation: int = 1
    """Which start of the run this is, from 1; from 2 on it goes on."""
    algorithm: str = ""
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options, versions, data and the like, nested, without secrets."""
    folder: Path | None = None


@dataclass(frozen=True)
class Prompt:
    """A prompt that was published."""

    name: str
    """Of the resource."""
    version: str
    """Id of the resources in which it was published."""
    text: str

    def as_markdown(self) -> str:
        """Its version and text."""
        return f"version `{self.version}`\n\n{as_code(self.text)}"


@dataclass(frozen=True)
class Sample:
    """A rollout, as a line of a table."""

    rollout_id: str
    status: str
    mode: str
    reward: float | None
    task: str
    conversation: str
    """Of its last model call: a message a paragraph, its role before it."""
    error: str

    def as_row(self, step: int) -> dict[str, Any]:
        """Column -> value."""
        return {"step": step, **asdict(self)}


async def about_run(algorithm: Algorithm, store: LightningStore) -> RunAbout:
    """What is known of the run that ``algorithm`` is about to do.

    Without a record in the store it is the algorithm's options.
    """
    run_id, generation = algorithm.get_run() or ("run", 1)
    name, folder = name_of(algorithm), algorithm.get_run_folder()
    config: dict[str, Any] = {"algorithm": options_of(algorithm)}
    with suppress(NotSupportedError):
        if (record := await get_run(store, run_id)) is not None:
            about = record.model_dump(mode="json", include={"seed", "code", "datasets"})
            config = {**record.config, "run": about}
    return RunAbout(run_id, generation, name, redact(config), folder)


async def sample_of(store: LightningStore, rollout: Rollout) -> Sample:
    """A rollout that has ended, without secrets and what is for the grader only."""
    spans = await store.query_spans(rollout.rollout_id, "latest")
    try:
        calls = model_calls(spans)
        said = "\n\n".join(map(_paragraph, conversation(calls[-1])["messages"])) if calls else ""
    except AdapterError as unread:
        said = f"(cannot be read: {unread})"
    error = rollout.attempt.error if isinstance(rollout, AttemptedRollout) else None
    failure = public_failure(error)
    task = without_private(rollout.input)
    return Sample(
        rollout_id=rollout.rollout_id,
        status=rollout.status,
        mode=rollout.mode or "",
        reward=FinalReward.of(rollout.status, find_final_reward(spans)).reward,
        task=shown(task if isinstance(task, str) else to_json_text(task)),
        conversation=shown(said),
        error="" if failure is None else shown(f"{failure.boundary}: {failure.message}"),
    )


def _paragraph(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    parts = [content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)]
    parts += [json.dumps(one.get("function", one)) for one in message.get("tool_calls") or ()]
    return f"{message['role']}: {' '.join(part for part in parts if part)}"


def as_code(text: str) -> str:
    """Indented, as Markdown leaves such text as it is."""
    return "\n".join(f"    {line}" for line in text.split("\n"))


@lru_cache(maxsize=2_048)
def shown(text: str) -> str:
    """A text without secrets and not too long; a call says again what those before it said."""
    return hide(capped(text, LONGEST_TEXT))
