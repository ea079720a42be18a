"""Conversations of other programs: lists of OpenAI's messages, and ATIF, read and written.

ATIF is the Agent Trajectory Interchange Format of Harbor. A trajectory has steps of the system, the
user and the agent; the agent's have its calls of tools, their observations, and token ids. Read is
what the versions 1.0 to 1.8 have in common.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from agl.errors import ConfigError
from agl_inspect.exchange.reading import Said, threads, tools_of
from agl_inspect.exchange.recorded import (
    FileRecord,
    as_object,
    checked,
    errors_at,
    objects_of,
    seconds_of,
)
from agl_learning.collect.task_order import digest
from agl_records.calls.conversations import ROLES
from agl_records.dialects.chat import as_json, tool_call

ATIF = "ATIF-v1.7"
"""The version that is written."""
_READ = tuple(f"ATIF-v1.{minor}" for minor in range(9))
"""Those that Harbor's schema names."""
_METRICS = {
    "prompt_token_ids": "prompt_token_ids",
    "completion_token_ids": "response_token_ids",
    "logprobs": "response_logprobs",
}
"""Names of a step's metrics -> those of a call."""
_SOURCES = {"system": "system", "user": "user", "agent": "assistant"}


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
            if role not in ROLES:
                raise ConfigError(f"{at}: role: expected one of {', '.join(ROLES)}; got {role!r}")
        calls = [
            {"messages": messages[:n], "response": said, "tools": found.get("tools") or []}
            for n, said in enumerate(messages)
            if said["role"] == "assistant"
        ]
        name = str(found.get("id") or _id_of(found, "reward", seen))
        yield from _records_of_calls(name, calls, found.get("reward"), where)


def _id_of(found: Mapping[str, Any], reward: str, seen: Counter[str]) -> str:
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


def _records_of_calls(
    name: str, calls: list[dict[str, Any]], reward: Any, where: str
) -> Iterator[tuple[str, FileRecord]]:
    """A rollout of these calls, whose task is what the first was asked, and its reward."""
    asked = [m for m in (calls[0]["messages"] if calls else ()) if m["role"] == "user"]
    task = asked[-1]["content"] if asked else None
    yield where, checked("rollout", {"id": name, "input": task, "calls": calls}, where)
    if reward is not None:
        yield where, checked("reward", {"rollout_id": name, "value": reward}, where)


# --- ATIF


def read_atif(path: Path) -> Iterator[tuple[str, FileRecord]]:
    """Trajectories, each with those of its sub-agents; a ``ConfigError`` for what is none."""
    seen = Counter[str]()
    for where, found in objects_of(path):
        with errors_at(where, "a trajectory of ATIF"):
            calls = list(_calls(found, where))
            reward = (found.get("extra") or {}).get("reward")
        given = found.get("trajectory_id") or found.get("session_id")
        name = given or _id_of(found, "extra", seen)
        yield from _records_of_calls(name, calls, reward, where)


def _calls(found: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    """The calls of a trajectory and of its sub-agents'."""
    steps, agent = found.get("steps"), found.get("agent")
    if found.get("schema_version") not in _READ:
        raise ConfigError(
            f"{where}: schema_version: expected {_READ[0]} to {_READ[-1]}; got "
            f"{found.get('schema_version')!r}"
        )
    if not isinstance(steps, list) or not steps or not isinstance(agent, dict):
        raise ConfigError(f"{where}: expected 'agent' and 'steps'; got the keys {sorted(found)}")
    messages: list[dict[str, Any]] = []
    for number, step in enumerate(steps):
        at = f"{where}: steps[{number}]"
        source = as_object(step, at).get("source")
        if source not in _SOURCES:
            raise ConfigError(f"{at}: source: expected system, user or agent; got {source!r}")
        said: dict[str, Any] = {"role": _SOURCES[source], "content": _parts(step.get("message"))}
        if source == "agent":
            if thought := step.get("reasoning_content"):
                said["reasoning_content"] = thought
            if called := step.get("tool_calls"):  # then it has no text where ATIF has ""
                said["content"] = said["content"] or None
                said["tool_calls"] = [
                    tool_call(
                        call["tool_call_id"],
                        call["function_name"],
                        # See ``_atif_call``.
                        (call.get("extra") or {}).get("arguments", call["arguments"]),
                    )
                    for call in called
                ]
            metrics, is_copy = step.get("metrics") or {}, step.get("is_copied_context")
            if not is_copy and step.get("llm_call_count") != 0:
                yield {
                    "messages": list(messages),
                    "response": said,
                    "tools": agent.get("tool_definitions") or [],
                    "model": step.get("model_name") or agent.get("model_name"),
                    "agent_name": agent.get("name"),
                    "finish_reason": (step.get("extra") or {}).get("finish_reason"),
                    "start_time": seconds_of(step.get("timestamp")),
                    **{own: metrics.get(name) for name, own in _METRICS.items()},
                }
        messages.append(said)
        for result in (step.get("observation") or {}).get("results") or ():
            name, content = result.get("source_call_id"), _parts(result.get("content"))
            own = {"role": "tool", "tool_call_id": name} if name else {"role": "user"}
            messages.append({**own, "content": content or ""})
    for number, inner in enumerate(found.get("subagent_trajectories") or ()):
        yield from _calls(inner, f"{where}: subagent_trajectories[{number}]")


def _parts(content: Any) -> Any:
    """A text as it is; parts with images as OpenAI has them."""
    if not isinstance(content, list):
        return content
    return [
        {"type": "image_url", "image_url": {"url": part["source"]["path"]}}
        if part.get("type") == "image"
        else part
        for part in content
    ]


def trajectories(said: Sequence[Said]) -> Iterator[tuple[dict[str, Any], list[Said]]]:
    """The conversations of a rollout as ATIF's trajectories, each with its calls."""
    for number, (messages, calls) in enumerate(threads(said), start=1):
        first = calls[0]
        by_place = {len(one.prompt): one for one in calls}
        steps: list[dict[str, Any]] = []
        for place, message in enumerate(messages):
            if message["role"] in ("tool", "function"):
                # A tool's answer stands at the step that called it.
                name = message.get("tool_call_id")
                called = [(step, call) for step in steps for call in step.get("tool_calls", ())]
                its = (step for step, call in reversed(called) if call["tool_call_id"] == name)
                content = _atif_parts(message.get("content"))
                if (step := next(its, None)) is None:  # nobody called it
                    name = None
                    step = {"step_id": len(steps) + 1, "source": "system", "message": ""}
                    steps.append(step)
                results = step.setdefault("observation", {"results": []})["results"]
                results.append(_known({"source_call_id": name, "content": content}))
                continue
            step = _step(message, by_place.get(place), place)
            steps.append({"step_id": len(steps) + 1, **step})
        agent = {
            "name": first.call.agent_name or "agent",
            "version": version("agl-core"),
            "model_name": first.call.model,
            "tool_definitions": tools_of(calls),
        }
        trajectory = {
            "schema_version": ATIF,
            "session_id": first.rollout_id,
            "trajectory_id": f"{first.rollout_id}/{number}",
            "agent": _known(agent),
            "steps": steps,
        }
        yield trajectory, calls


def _step(message: Mapping[str, Any], one: Said | None, place: int) -> dict[str, Any]:
    source = {"assistant": "agent", "user": "user"}.get(message["role"], "system")
    step = {"source": source, "message": _atif_parts(message.get("content"))}
    if source != "agent":
        return step
    calls = enumerate(message.get("tool_calls") or ())
    called = [_atif_call(call, f"call-{place}-{number}") for number, call in calls]
    step |= _known({"reasoning_content": message.get("reasoning_content"), "tool_calls": called})
    if one is None:
        return {**step, "is_copied_context": True}  # a given example, and no call of the rollout
    call = one.call
    metrics = {name: getattr(call, own) for name, own in _METRICS.items()}
    began = call.start_time and datetime.fromtimestamp(call.start_time, UTC).isoformat()
    about = {
        "timestamp": began,
        "model_name": call.model,
        "metrics": _known(metrics),
        "extra": _known({"finish_reason": call.finish_reason}),
    }
    return {**step, **_known(about), "llm_call_count": 1}


def _atif_call(call: Mapping[str, Any], default_id: str) -> dict[str, Any]:
    """A call of a function, or of a custom tool, whose input is a text."""
    function = call.get("function") or call["custom"]
    given = function.get("arguments", function.get("input"))
    found = {"tool_call_id": call.get("id") or default_id, "function_name": function["name"]}
    try:
        arguments = json.loads(as_json(given)) if "function" in call else None
    except ValueError:
        arguments = None
    if isinstance(arguments, dict):
        return {**found, "arguments": arguments}
    # ATIF takes objects only; what the model wrote is kept beside it.
    return {**found, "arguments": {}, "extra": {"arguments": given}}


def _atif_parts(content: Any) -> Any:
    if not isinstance(content, list):
        return content or ""
    return [_atif_part(part) for part in content]


def _atif_part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part.get("type") != "image_url":
        return {"type": "text", "text": str(part.get("text", json.dumps(part)))}
    image = part["image_url"]
    url = image if isinstance(image, str) else image["url"]
    kind = url.removeprefix("data:").partition(";")[0]
    known = kind in ("image/jpeg", "image/png", "image/gif", "image/webp")
    return {"type": "image", "source": {"media_type": kind if known else "image/png", "path": url}}


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value}
