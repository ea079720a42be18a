"""Attempts that others recorded: which prompt was used on what, and what reward it got.

Read are plain records and what ``agl export`` writes as messages, samples and triplets.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agl.errors import ConfigError
from agl.utils.text import did_you_mean

_KEYS = ("prompt", "input", "output", "messages", "completion", "reward", "comment", "task")
_EXPORTED = ("tools", "metadata", "provenance", "response", "agent_name")
_PROMPT_ROLES = ("system", "developer")

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Attempt:
    """One use of a prompt."""

    prompt: str
    task: str
    """What it was used on; attempts at the same task belong together."""
    reward: float
    """From 0 to 1: scaled by ``reward_range``."""
    messages: tuple[Message, ...]
    """What was said, without the prompt."""
    comment: str | None = None
    """What a person or a grader said of it."""


@dataclass
class Logged:
    """All attempts of a data set."""

    attempts: list[Attempt] = field(default_factory=list["Attempt"])
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Why a record is not used -> how many."""

    def by_prompt(self) -> dict[str, list[Attempt]]:
        """The attempts of each prompt, in the order in which they came."""
        found: dict[str, list[Attempt]] = {}
        for attempt in self.attempts:
            found.setdefault(attempt.prompt, []).append(attempt)
        return found


def read_logged(
    data: str | Path | Iterable[Mapping[str, Any]],
    prompt: str | None,
    reward_range: tuple[float, float],
) -> Logged:
    """Read records, or a file of JSON lines.

    Several calls of one rollout with the same prompt, as an export has them, are one attempt: the
    one with the longest conversation.

    Args:
        data: Records, or the path of a ``.jsonl`` file.
        prompt: What was used where a record does not say it.
        reward_range: The lowest and the highest possible reward.

    Raises:
        ConfigError: A record cannot be read, or a reward is outside the range.
    """
    logged = Logged()
    longest: dict[tuple[str, str], int] = {}
    for where, record in _records(data):
        try:
            attempt = _attempt(record, prompt, reward_range)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        if attempt is None:
            logged.left_out["no reward"] += 1
            continue
        origin = record.get("provenance")
        rollout = origin.get("rollout_id") if isinstance(origin, Mapping) else None
        key = (str(rollout), attempt.prompt)
        if rollout is not None and key in longest:
            logged.left_out["another call of the same rollout"] += 1
            if len(attempt.messages) > len(logged.attempts[longest[key]].messages):
                logged.attempts[longest[key]] = attempt
            continue
        longest[key] = len(logged.attempts)
        logged.attempts.append(attempt)
    return logged


def _records(
    data: str | Path | Iterable[Mapping[str, Any]],
) -> Iterable[tuple[str, Mapping[str, Any]]]:
    if isinstance(data, Mapping):
        raise ConfigError(
            f"APO.optimize: expected records or the path of a .jsonl file; got one mapping with "
            f"the keys {', '.join(map(repr, data))}. What has 'rollouts' and 'rewards' is read by "
            "agl import FILE, and agl export --as messages writes the records"
        )
    if not isinstance(data, str | Path):
        for number, record in enumerate(data):
            yield f"record {number}", _mapping(f"record {number}", record)
        return
    try:
        lines = Path(data).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{data}: cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{data}, line {number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{where}: not JSON: {error}") from None
        yield where, _mapping(where, record)


def _mapping(where: str, record: Any) -> Mapping[str, Any]:
    if not isinstance(record, Mapping):
        raise ConfigError(
            f"{where}: expected a record with prompt and reward; got {type(record).__name__}"
        )
    return record


def _attempt(
    record: Mapping[str, Any], prompt: str | None, reward_range: tuple[float, float]
) -> Attempt | None:
    """What a record says; None where it has no reward."""
    if "token_ids" in record:
        raise ConfigError("it has token ids and no text; use agl export --as messages")
    for name in record:
        if name not in (*_KEYS, *_EXPORTED):
            raise ConfigError(
                f"unknown key {name!r}; expected any of {', '.join(_KEYS)}."
                f"{did_you_mean(name, _KEYS)}"
            )
    if "reward" not in record:
        raise ConfigError("it has no reward; null says that there is none")
    if record["reward"] is None:
        return None
    said = _said(record)
    heads = [message for message in said if message.get("role") in _PROMPT_ROLES]
    given = record.get("prompt")
    used = given if isinstance(given, str) else _text(heads[0]) if heads else prompt
    if not used:
        raise ConfigError(
            "which prompt was used? It has neither a prompt nor a system message; pass "
            "optimize(data, prompt=...)"
        )
    rest = tuple(message for message in said if message not in heads)
    task = record.get("task", record.get("input"))
    if task is None:
        task = next((_text(message) for message in rest if message.get("role") == "user"), "")
    comment = record.get("comment")
    return Attempt(
        prompt=used,
        task=task if isinstance(task, str) else json.dumps(task, ensure_ascii=False),
        reward=_scaled(record["reward"], reward_range),
        messages=rest,
        comment=None if comment is None else str(comment),
    )


def _said(record: Mapping[str, Any]) -> list[Message]:
    """The conversation of a record, in whichever of the forms it has it."""
    prompt, output = record.get("prompt"), record.get("output")
    if isinstance(prompt, Mapping):  # a triplet
        response: Any = record.get("response") or {}
        parts = [prompt.get("raw_content"), response.get("raw_content")]
    else:
        parts = [record.get("messages"), prompt, record.get("completion")]
    messages = [message for part in parts if isinstance(part, list) for message in part]
    if not messages and record.get("input") is not None:
        messages.append({"role": "user", "content": record["input"]})
    if output is not None:
        messages.append({"role": "assistant", "content": output})
    for message in messages:
        if not isinstance(message, Mapping):
            raise ConfigError(f"expected messages with role and content; got {message!r:.100}")
    return messages


def _text(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _scaled(reward: Any, reward_range: tuple[float, float]) -> float:
    low, high = reward_range
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        raise ConfigError(f"reward: expected a number; got {reward!r:.100}")
    if not low <= reward <= high:
        raise ConfigError(
            f"reward {reward!r} is not from {low} to {high}; say what is possible with reward_range"
        )
    return (reward - low) / (high - low)
