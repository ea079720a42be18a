"""The answer that a stream amounts to."""

from collections.abc import Mapping, Sequence
from typing import Any

from agl_gateway.dialect import events_of
from agl_gateway.errors import WRONG_FORM
from agl_gateway.normalizer import UNFINISHED, BrokenAnswerError, Normalizer, wrong_form


class StreamedAnswer:
    """The answer that the chunks of a stream amount to, in the shape of an unstreamed one."""

    def __init__(self, request: bytes) -> None:
        self._normalizer = Normalizer(request)
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._failure: str | None = None

    def problem(self) -> str | None:
        """Why this is no whole answer, if it is none."""
        if self._failure is not None:
            return self._failure
        if not self._choices or not all(one.get("finish_reason") for one in self._choices.values()):
            return UNFINISHED
        try:
            self._normalizer.end()
        except ValueError as failure:
            return str(failure)
        return None

    def add(self, data: bytes) -> bool:
        """Take in one event; False when the answer ends with it."""
        if data == b"[DONE]":
            return False
        try:
            chunk = self._normalizer.read(data)
            if not chunk.keys() <= self._head.keys() or chunk.get("usage"):
                new = {key: value for key, value in chunk.items() if value is not None}
                usage = {key: new[key] for key in ("usage",) if key in new}
                self._head = {**new, **self._head, **usage}
            for part in chunk["choices"]:
                index = part["index"]
                if index not in self._choices:
                    is_text = part.get("delta") is None and isinstance(part.get("text"), str)
                    kind = {"text": ""} if is_text else {"message": {}}
                    self._choices[index] = {"index": index, **kind}
                _merge_choice(self._choices[index], part)
        except BrokenAnswerError as failure:
            self._failure = str(failure)
        except WRONG_FORM as failure:
            self._failure = str(wrong_form(data, failure))
        return self._failure is None

    def completion(self) -> dict[str, Any] | None:
        """What has come so far, or None when nothing has."""
        if not self._head:
            return None
        return {**self._head, "choices": [self._choice(index) for index in sorted(self._choices)]}

    def _choice(self, index: int) -> dict[str, Any]:
        choice, read = self._choices[index], self._normalizer.choices[index]
        if read.goes_on_after_end:
            choice = {**choice, "goes_on_after_end": True}
        if not read.calls:
            return choice
        called = {"tool_calls": [call.as_chat() for call in read.calls]}
        return {**choice, "message": {**choice.get("message", {}), **called}}


def assemble(chunks: Sequence[bytes], request: bytes) -> StreamedAnswer:
    """Read a stream of chat completions or completions, whole or broken off."""
    answer = StreamedAnswer(request)
    for data in events_of(b"".join(chunks)):
        if not answer.add(data):
            break
    return answer


def _merge_choice(choice: dict[str, Any], part: Mapping[str, Any]) -> None:
    if delta := part.get("delta"):
        _merge_delta(choice.setdefault("message", {}), delta)
    logprobs = part.get("logprobs")
    if isinstance(logprobs, dict):
        known = choice.setdefault("logprobs", {})
        for name in ("content", "token_logprobs", "tokens"):
            _extend(known, name, logprobs.get(name))
    elif logprobs:
        choice["logprobs"] = logprobs
    for name in ("token_ids", "prompt_token_ids"):
        _extend(choice, name, part.get(name))
    if (text := part.get("text")) and "message" not in choice:  # of completions
        choice["text"] = choice.get("text", "") + text
    for name in ("finish_reason", "stop_reason", "matched_stop", "weight_versions"):
        if (said := part.get(name)) is not None:
            choice[name] = said


def _extend(known: dict[str, Any], name: str, given: Any) -> None:
    """Add to a list; what is none is kept, for who says that it cannot be read."""
    if isinstance(given, list) and isinstance(known.get(name, []), list):
        known.setdefault(name, []).extend(given)
    elif given is not None:
        known[name] = given


def _merge_delta(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for key, value in delta.items():
        before = message.get(key)
        if value is None or key == "tool_calls":
            continue
        if key in ("name", "id", "type") and value == before:
            continue  # it comes with each piece
        if isinstance(value, str) and isinstance(before, str | None) and key != "role":
            message[key] = (before or "") + value
        elif isinstance(value, dict) and isinstance(before, dict | None):  # `function_call`, say
            _merge_delta(message.setdefault(key, {}), value)
        elif isinstance(value, list):
            _extend(message, key, value)
        else:
            message[key] = value
