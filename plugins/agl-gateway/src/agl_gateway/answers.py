"""The answer that a stream amounts to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from agl_gateway.dialect import events_of
from agl_gateway.errors import NOT_JSON, WRONG_FORM, shorten


@dataclass
class StreamedAnswer:
    """The answer that the chunks of a stream amount to, in the shape of an unstreamed one."""

    head: dict[str, Any] = field(default_factory=dict[str, Any])
    choices: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    tool_calls: dict[int, dict[int, dict[str, Any]]] = field(
        default_factory=dict[int, dict[int, dict[str, Any]]]
    )
    """Of each choice, by the numbers that the backend gives them, whatever those are."""
    error: str | None = None
    """What the stream said had gone wrong."""
    malformed: str | None = None
    """The first event that is no chunk of an answer, though it is JSON."""
    is_done: bool = False
    """Whether its last event was there."""

    def problem(self) -> str | None:
        """Why this is no whole answer, if it is none."""
        if self.error is not None:
            return f"the backend reported an error in the stream: {self.error}"
        if self.malformed is not None:
            return f"the backend sent an event that is no part of an answer: {self.malformed}"
        if self.choices and all(one.get("finish_reason") for one in self.choices.values()):
            return None
        return "the stream ended before the answer was complete"

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Take in one chunk."""
        if chunk.get("error"):
            error = chunk["error"]
            self.error = str(error.get("message", error) if isinstance(error, dict) else error)
            return
        for key, value in chunk.items():
            if key != "choices" and value is not None:
                self.head.setdefault(key, value)
                if key == "usage":
                    self.head[key] = value
        for part in chunk.get("choices") or ():
            index = _number(part.get("index"), 0)
            choice = self.choices.setdefault(index, {"index": index})
            _merge_choice(choice, part, self.tool_calls.setdefault(index, {}))

    def completion(self) -> dict[str, Any] | None:
        """What has come so far, or None when nothing has."""
        if not self.head and not self.choices:
            return None
        choices = [self._choice(index) for index in sorted(self.choices)]
        return {**self.head, "choices": choices}

    def _choice(self, index: int) -> dict[str, Any]:
        choice, calls = self.choices[index], self.tool_calls[index]
        if not calls:
            return choice
        ordered = [calls[number] for number in sorted(calls)]
        return {**choice, "message": {**choice["message"], "tool_calls": ordered}}


def assemble(chunks: Sequence[bytes]) -> StreamedAnswer:
    """Read a stream of chat completions or completions, whole or broken off."""
    answer = StreamedAnswer()
    for data in events_of(b"".join(chunks)):
        if data == b"[DONE]":
            answer.is_done = True
            continue
        try:
            chunk = msgspec.json.decode(data)
        except NOT_JSON:
            chunk = None
        if isinstance(chunk, dict):
            try:
                answer.add(chunk)
            except WRONG_FORM as failure:
                answer.malformed = answer.malformed or f"{shorten(data)} ({failure!r})"
        elif answer.error is None:
            answer.error = f"the backend sent an event that is not JSON: {shorten(data)}"
    return answer


def _number(index: Any, otherwise: int) -> int:
    """What a backend gives as an index, where it is one."""
    return index if type(index) is int and index >= 0 else otherwise


def _merge_choice(
    choice: dict[str, Any], part: Mapping[str, Any], calls: dict[int, dict[str, Any]]
) -> None:
    if "text" in part:  # of completions
        choice["text"] = choice.get("text", "") + (part["text"] or "")
    else:
        _merge_delta(choice.setdefault("message", {}), part.get("delta") or {}, calls)
    for key in ("token_ids", "prompt_token_ids"):
        if part.get(key):
            choice.setdefault(key, []).extend(part[key])
    for key, values in (part.get("logprobs") or {}).items():
        if key in ("content", "token_logprobs") and values:
            choice.setdefault("logprobs", {}).setdefault(key, []).extend(values)
    for key in ("finish_reason", "stop_reason", "weight_versions"):
        if part.get(key) is not None:
            choice[key] = part[key]


def _merge_delta(
    message: dict[str, Any], delta: Mapping[str, Any], calls: dict[int, dict[str, Any]]
) -> None:
    for key, value in delta.items():
        if value is None:
            continue
        if key == "tool_calls":
            for call in value:
                _merge_tool_call(calls, call)
        elif isinstance(value, str) and key != "role":
            message[key] = message.get(key, "") + value
        else:
            message[key] = value


def _merge_tool_call(calls: dict[int, dict[str, Any]], part: Mapping[str, Any]) -> None:
    call = calls.setdefault(
        _number(part.get("index"), _unnumbered(calls, part)),
        {"type": "function", "function": {"name": "", "arguments": ""}},
    )
    for key in ("id", "type"):
        if part.get(key):
            call[key] = part[key]
    function = part.get("function") or {}
    call["function"]["name"] += function.get("name") or ""
    call["function"]["arguments"] += function.get("arguments") or ""


def _unnumbered(calls: dict[int, dict[str, Any]], part: Mapping[str, Any]) -> int:
    """To which call a part without a number belongs: the last one, unless it begins another."""
    if not calls:
        return 0
    last = next(reversed(calls))
    call_id, name = part.get("id"), (part.get("function") or {}).get("name")
    if not (call_id != calls[last].get("id") if call_id else name):
        return last
    return last + 1 if last + 1 not in calls else max(calls) + 1
