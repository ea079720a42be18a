"""Conversations as lists of OpenAI's messages, such as those that fine-tuning takes."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agl.errors import ConfigError
from agl_inspect.exchange.recorded import FileRecord, as_object, checked, objects_of
from agl_learning.collect.task_order import digest

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def read_messages(path: Path) -> Iterator[tuple[str, FileRecord]]:
    """Objects with ``messages``, perhaps ``tools``, ``reward``, ``id``; else a ``ConfigError``."""
    seen = Counter[str]()
    for where, found in objects_of(path):
        messages = found.get("messages")
        if not isinstance(messages, list) or not messages:
            raise ConfigError(
                f"{where}: expected 'messages', a list of messages; got the keys {sorted(found)}"
            )
        for position, message in enumerate(messages):
            at = f"{where}: messages[{position}]"
            role = as_object(message, at).get("role")
            if role not in _ROLES:
                raise ConfigError(f"{at}: role: expected one of {', '.join(_ROLES)}; got {role!r}")
        calls = [
            {"messages": messages[:n], "response": said, "tools": found.get("tools") or []}
            for n, said in enumerate(messages)
            if said["role"] == "assistant"
        ]
        name = str(found.get("id") or id_of(found, "reward", seen))
        yield from records_of_calls(name, calls, found.get("reward"), where)


def id_of(found: Mapping[str, Any], reward: str, seen: Counter[str]) -> str:
    """An id for what has none: its content's without the key ``reward``, the same in any file.

    ``seen`` counts how often a content stood before in the file: equal ones get ids of their own.
    """
    name = digest([{key: value for key, value in found.items() if key != reward}])
    seen[name] += 1
    return name if seen[name] == 1 else f"{name}/{seen[name]}"


def beginnings(path: Path) -> list[str]:
    """A sentence on the conversations of a file that others of it begin with, if there are any."""
    whole = {[*_digests(found)][-1]: where for where, found in objects_of(path)}
    longer = {
        whole[said]: where
        for where, found in objects_of(path)
        for said in [*_digests(found)][:-1]
        if said in whole
    }
    if not longer:
        return []
    shown = [f"{one} of {other}" for one, other in [*longer.items()][:3]]
    return [
        f"{len(longer)} conversations are beginnings of others, so that their calls are in the "
        f"store twice: {'; '.join(shown)}{'; ...' if len(longer) > len(shown) else ''}"
    ]


def _digests(conversation: dict[str, Any]) -> Iterator[bytes]:
    """Of each beginning of it, the whole last."""
    said = hashlib.sha256()
    for message in conversation["messages"]:
        said.update(json.dumps(message, sort_keys=True).encode())
        yield said.digest()


def records_of_calls(
    name: str, calls: list[dict[str, Any]], reward: Any, where: str
) -> Iterator[tuple[str, FileRecord]]:
    """A rollout of these calls, whose task is what the first was asked, and its reward."""
    asked = [m for m in (calls[0]["messages"] if calls else ()) if m["role"] == "user"]
    task = asked[-1]["content"] if asked else None
    yield where, checked("rollout", {"id": name, "input": task, "calls": calls}, where)
    if reward is not None:
        yield where, checked("reward", {"rollout_id": name, "value": reward}, where)
