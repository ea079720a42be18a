"""What is added to a request, taken out of its answer again, and put together from a stream."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

EXTENSIONS: Mapping[str, str] = {
    "return_token_ids": "return_token_ids",
    "logprobs": "logprobs",
    "weight_versions": "return_weight_versions",
}
"""Callback name -> the field of the request that it sets to true."""

_CHOICE_KEYS = {"return_token_ids": "token_ids", "weight_versions": "weight_versions"}


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def dumps(value: Any) -> bytes:
    """JSON as vLLM and OpenAI write it: compact, unescaped."""
    return _encode(value).encode()


@dataclass(frozen=True)
class Additions:
    """What the gateway asked of the backend that the agent had not asked for."""

    callbacks: frozenset[str] = frozenset()

    @classmethod
    def of(cls, request: Mapping[str, Any], callbacks: tuple[str, ...]) -> "Additions":
        """Those of ``callbacks`` that the request does not have itself."""
        return cls(frozenset(name for name in callbacks if not request.get(EXTENSIONS[name])))

    def add_to(self, request: Mapping[str, Any], model: str) -> bytes:
        """The body for the backend."""
        extra = {EXTENSIONS[name]: True for name in sorted(self.callbacks)}
        return dumps({**request, "model": model, **extra})

    def remove_from(self, answer: dict[str, Any]) -> bool:
        """Take the additions out of an answer or a chunk; whether there were any."""
        found = "return_token_ids" in self.callbacks and _drop(answer, "prompt_token_ids")
        for choice in answer.get("choices") or ():
            for name, key in _CHOICE_KEYS.items():
                found |= name in self.callbacks and _drop(choice, key)
            if "logprobs" in self.callbacks and choice.get("logprobs") is not None:
                choice["logprobs"] = None
                found = True
        return found


def _drop(mapping: dict[str, Any], key: str) -> bool:
    if key not in mapping:
        return False
    del mapping[key]
    return True


@dataclass
class StreamedAnswer:
    """The answer that the chunks of a stream amount to, in the shape of an unstreamed one."""

    head: dict[str, Any] = field(default_factory=dict[str, Any])
    choices: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    error: str | None = None
    """What a chunk said had gone wrong."""

    @property
    def is_complete(self) -> bool:
        """Whether every choice has its finish reason."""
        return bool(self.choices) and all(
            choice.get("finish_reason") for choice in self.choices.values()
        )

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
            index = part.get("index", 0)
            choice = self.choices.setdefault(index, {"index": index, "message": {}})
            _merge_choice(choice, part)

    def completion(self) -> dict[str, Any] | None:
        """What has come so far, or None when nothing has."""
        if not self.head and not self.choices:
            return None
        choices = [self.choices[index] for index in sorted(self.choices)]
        return {**self.head, "object": "chat.completion", "choices": choices}


def _merge_choice(choice: dict[str, Any], part: Mapping[str, Any]) -> None:
    _merge_delta(choice["message"], part.get("delta") or {})
    if part.get("token_ids"):
        choice.setdefault("token_ids", []).extend(part["token_ids"])
    logprobs = part.get("logprobs") or {}
    if logprobs.get("content"):
        choice.setdefault("logprobs", {"content": []})["content"].extend(logprobs["content"])
    for key in ("finish_reason", "stop_reason", "weight_versions"):
        if part.get(key) is not None:
            choice[key] = part[key]


def _merge_delta(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for key, value in delta.items():
        if value is None:
            continue
        if key == "tool_calls":
            for call in value:
                _merge_tool_call(message.setdefault("tool_calls", []), call)
        elif isinstance(value, str) and key != "role":
            message[key] = message.get(key, "") + value
        else:
            message[key] = value


def _merge_tool_call(calls: list[dict[str, Any]], part: Mapping[str, Any]) -> None:
    index = part.get("index", len(calls))
    while len(calls) <= index:
        calls.append({"type": "function", "function": {"name": "", "arguments": ""}})
    call = calls[index]
    for key in ("id", "type"):
        if part.get(key):
            call[key] = part[key]
    function = part.get("function") or {}
    call["function"]["name"] += function.get("name") or ""
    call["function"]["arguments"] += function.get("arguments") or ""
