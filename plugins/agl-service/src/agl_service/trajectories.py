"""What the agents of a job did, as transitions: what the model read, said and was rewarded for."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any


@dataclass(frozen=True)
class Transition:
    """A call of the model."""

    input: str
    """The prompt: of one message its text, of several each with its role before it."""
    output: str
    reward: float
    """The sum of the rewards that are about this call; 0.0 for none."""
    metadata: dict[str, Any]
    """``messages`` and ``tool_calls`` in full, and ``provenance``: the ids of attempt and span."""


@dataclass(frozen=True)
class Trajectory:
    """A rollout that succeeded."""

    task_id: str
    """Of its rollout: ``rollout_id`` in the metadata of ``Resource``."""
    transitions: list[Transition]
    total_reward: float
    metadata: dict[str, Any]
    """``num_steps``."""


def read_trajectories(lines: Iterable[bytes]) -> Iterator[Trajectory]:
    """Trajectories of what ``agl export --as sft --credit per_call`` writes."""
    records = (json.loads(line) for line in lines)
    for rollout_id, group in groupby(records, lambda one: one["provenance"]["rollout_id"]):
        steps = [_transition(record) for record in group]
        total = sum(step.reward for step in steps)
        yield Trajectory(rollout_id, steps, total, {"num_steps": len(steps)})


def _transition(record: dict[str, Any]) -> Transition:
    prompt, answer = record["prompt"], record["completion"][0]
    texts = [f"{message['role']}: {message.get('content') or ''}" for message in prompt]
    metadata = {"messages": prompt, "tool_calls": answer.get("tool_calls") or []}
    return Transition(
        input=(prompt[0].get("content") or "") if len(prompt) == 1 else "\n".join(texts),
        output=answer.get("content") or "",
        reward=record["reward"] or 0.0,
        metadata={**metadata, "provenance": record["provenance"]},
    )
