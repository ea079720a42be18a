"""Reads the answers of model servers, in whatever form they come, into one form.

The record of a call and every dialect read chunks through ``Normalizer``, so an agent sees what is
recorded. In the one form texts are strings, a tool call has an id, a name and a number by which its
pieces are told apart, arguments are JSON text, and an answer ends once.
"""

import json
import sys
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from agl_gateway.errors import NOT_JSON, WRONG_FORM, message_of, shorten
from agl_gateway.normal_form import WholeAnswer, is_normal_answer, open_whole
from agl_gateway.tool_calls import ARGUMENTS, ToolCall, pass_calls
from agl_records.dialects.chat import finish_reason

FAILED = {"error", "abort", "aborted", "cancelled", "canceled", "failed", "timeout"}
FAILED |= {"network_error", "insufficient_system_resource"}
"""Values of ``finish_reason`` that a server sends when it could not end the answer."""
TEXTS = ("content", "reasoning_content", "reasoning", "refusal")
"""Fields of a message that are strings."""
_ONLY_TEXTS = {str}
UNFINISHED = "the stream ended before the answer was complete"

Json = dict[str, Any]


class BrokenAnswerError(Exception):
    """The server says that its answer failed, or sends what is no part of an answer."""

    def __init__(self, message: str, is_event: bool = False) -> None:
        super().__init__(message)
        self.is_event = is_event
        """Whether an event of the server says it already."""


def wrong_form(data: bytes, failure: Exception) -> BrokenAnswerError:
    """What reading an event has raised, as an error of the server."""
    message = "the backend sent an event that is no part of an answer"
    return BrokenAnswerError(f"{message}: {shorten(data)} ({failure!r})")


@dataclass
class Choice:
    """A choice, as far as it has come."""

    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    """In the order in which they began."""
    by_index: dict[int, ToolCall] = field(default_factory=dict[int, ToolCall])
    """The call that the server's number means now."""
    finish_reason: str | None = None
    ended_as: Any = None
    """Its number where it ended."""
    goes_on_after_end: bool = False
    """Something has come after its reason to finish."""
    older_name: str = ""
    """Of the call of a function in the older form."""


class Normalizer:
    """Reads one answer, chunk by chunk."""

    def __init__(self, request: bytes = b"") -> None:
        self.request = request
        """Read where a server numbers its choices from elsewhere than 0."""
        self.highest: int | None = None
        """Of the server's numbers of the only choice; None until it has sent one."""
        self._num_asked: int | None = None
        self.choices: dict[int, Choice] = {}
        self._answer_id: Any = None
        self.needs_every_chunk = False
        """Plain ones, too: a tool call has begun, or the server's choice is not number 0."""

    def end(self) -> None:
        """Nothing more comes; a ``ValueError`` if a tool call has no name."""
        for choice in self.choices.values():
            pass_calls(choice.calls)

    def read(self, data: bytes) -> Json:
        """The chunk that an event of a stream holds.

        Raises:
            BrokenAnswerError: The answer fails with this event.
        """
        try:
            chunk = msgspec.json.decode(data)
        except NOT_JSON:
            chunk = None
        if not isinstance(chunk, dict):
            message = f"the backend sent an event that is not JSON: {shorten(data)}"
            raise BrokenAnswerError(message)
        if error := chunk.get("error"):
            raise _reported(error, is_event=True)
        try:
            return self.take(chunk)
        except WRONG_FORM as failure:
            raise wrong_form(data, failure) from None

    def take_message(self, answer: Json, choice: Json) -> Json:
        """One choice of an unstreamed answer as the only chunk of a stream.

        Raises:
            BrokenAnswerError: The server ends an answer that failed.
            ValueError: It has a wrong form; others of ``WRONG_FORM`` say the same.
        """
        message = choice.get("message")
        if message is None and choice.get("text") is None:
            raise ValueError("a choice has no message")
        message = dict(message or {})
        if calls := message.get("tool_calls"):  # each is another call
            message["tool_calls"] = [{**call, "index": n} for n, call in enumerate(calls)]
        part = {**choice, "index": 0, "delta": message}
        chunk = self.take({**answer, "choices": [part]}, is_whole=True)
        self.end()
        return chunk

    def take(self, chunk: Json, is_whole: bool = False) -> Json:
        """Bring a chunk into the one form, in place; after one that is whole nothing comes.

        Raises:
            BrokenAnswerError: The server ends an answer that failed.
            ValueError: The chunk has a wrong form; others of ``WRONG_FORM`` say the same.
        """
        self._answer_id = chunk.get("id")
        chunk["choices"] = parts = chunk.get("choices") or []
        for part in parts:
            index = given = part.get("index")
            if given != 0 or type(given) is not int or self.highest != 0:
                index = part["index"] = self._choice_number(given, part)
            if error := part.get("error"):
                raise _reported(error)
            if not isinstance(part.get("text"), str | None):
                raise TypeError(f"'text' is {part['text']!r}; expected a string")
            choice = self.choices.get(index) or self.choices.setdefault(index, Choice())
            delta = part.get("delta")
            # Some servers give it with each piece of the last step.
            is_late = choice.finish_reason and not part.get("finish_reason")
            if is_late and _says_anything(part):
                choice.goes_on_after_end = True
            if delta and (choice.calls or {*map(type, delta.values())} != _ONLY_TEXTS):
                has_text = _take_texts(delta)
                if has_text and choice.calls:
                    pass_calls(choice.calls)
                if older := delta.pop("function_call", None):
                    delta |= _take_older(choice, older)
                if pieces := delta.get("tool_calls"):
                    may_hold = not (is_whole or part.get("finish_reason") or choice.finish_reason)
                    delta["tool_calls"] = [self._piece(choice, one, may_hold) for one in pieces]
            if part.get("finish_reason") is not None:
                said = _finish_reason(part["finish_reason"])
                if said and choice.finish_reason and given != choice.ended_as:
                    choice.goes_on_after_end = True  # two answers under two numbers
                choice.finish_reason, choice.ended_as = choice.finish_reason or said, given
                part["finish_reason"] = said and choice.finish_reason
                if said:
                    if held := [call for call in choice.calls if call.holds_object]:
                        delta = part["delta"] = part.get("delta") or {}
                        sent = delta.get("tool_calls") or []
                        delta["tool_calls"] = [*sent, *(call.release() for call in held)]
                    pass_calls(choice.calls)
        if len(parts) > 1 and len({part["index"] for part in parts}) < len(parts):
            raise ValueError("two pieces of one choice in a chunk")  # clients read the first
        if (usage := chunk.get("usage")) is not None and not isinstance(usage, dict):
            del chunk["usage"]
        return chunk

    def _choice_number(self, given: Any, part: Json) -> int:
        """Which choice is meant.

        Where one was asked for, servers number it as they like: LiteLLM by Anthropic's blocks, TGI
        by its tokens. Only what says more under a number that is past is of another answer.
        """
        if self._num_asked is None:
            self._num_asked = _count_choices(self.request)
        if self._num_asked == 1:
            if type(given) is int:
                highest = given if self.highest is None else self.highest
                if given < highest and _says_anything(part):
                    raise ValueError(f"choice {given} after choice {highest} of one answer")
                self.highest = max(given, highest)
                self.needs_every_chunk |= self.highest > 0
            return 0
        if type(given) is not int or not 0 <= given < self._num_asked:
            raise ValueError(f"choice {given!r} of {self._num_asked}, from 0")
        return given

    def _piece(self, choice: Choice, piece: Json, may_hold: bool) -> Json:
        """A piece of a tool call: ``index`` counts calls, and only the first piece has an id."""
        kind = "custom" if piece.get("custom") else "function"
        said: Json = piece.get(kind) or {}
        arguments = said.get(ARGUMENTS[kind])
        name, text = said.get("name") or "", _as_text(arguments)
        index, call_id = _number(piece.get("index")), str(piece.get("id") or "")
        call, is_new = self._meant(choice, index, call_id), False
        if call is None or call.begins_another(call_id, name, index is not None):
            call, is_new = self._begin(choice, call_id, kind), True
        elif name and (call.arguments or call.holds_object or name == call.name):
            name = ""  # comes with every piece
        if index is not None:
            choice.by_index[index] = call
        call.name += name
        pass_calls(choice.calls, call)
        if call.is_closed:
            if text.strip():
                raise ValueError(f"more arguments of tool call {call.number} after their end")
            text = ""
        if text:
            call.check_name()
            # Where a server begins with an empty object, the text after it is all of it.
            call.holds_object = may_hold and not call.arguments and arguments == {}
            text = "" if call.holds_object else text
            call.arguments += text
        taken, given = {**piece, "index": call.number}, {"name": name, ARGUMENTS[kind]: text}
        if is_new:
            taken |= {"id": call.call_id, "type": piece.get("type") or kind}
        else:
            taken.pop("id", None)
        before = {key: value for key, value in said.items() if value is not None}
        if changed := {key: one for key, one in given.items() if one != before.get(key, "")}:
            taken[kind] = {**said, **changed}
        return taken

    def _meant(self, choice: Choice, index: int | None, call_id: str) -> ToolCall | None:
        """The call that a piece seems to be of, by its number or else its id; or the last one."""
        same_id = [call for call in choice.calls if call_id and call.call_id == call_id]
        if index is None:
            return (same_id or choice.calls or [None])[-1]
        call = choice.by_index.get(index)
        return same_id[-1] if call is not None and same_id and call not in same_id else call

    def _begin(self, choice: Choice, call_id: str, kind: str) -> ToolCall:
        self.needs_every_chunk = True
        number = len(choice.calls)
        # The record is read from the same bytes later, and must come to the same id.
        made_up = "_".join(map(str, filter(None, ("call", self._answer_id, str(number)))))
        choice.calls.append(call := ToolCall(number, call_id or made_up, bool(call_id), kind))
        return call


def read_whole(body: bytes) -> WholeAnswer:
    """An unstreamed answer in the one form; the body of one that has it is as it came.

    Raises:
        ValueError: The server says that the answer failed, or it is none.
    """
    opened = open_whole(body)
    if is_normal_answer(opened):
        return opened
    answer = msgspec.json.decode(body)
    try:
        if error := answer.get("error"):
            raise _reported(error)
        for choice in answer["choices"]:
            (part,) = Normalizer().take_message(answer, choice)["choices"]
            if "message" in choice:
                choice["message"] = part["delta"]
                for call in part["delta"].get("tool_calls") or ():
                    del call["index"]
            choice["finish_reason"] = part.get("finish_reason")
    except BrokenAnswerError as failure:
        raise ValueError(str(failure)) from None
    except WRONG_FORM as failure:
        raise ValueError(f"it has a wrong form: {failure!r}") from None
    return open_whole(msgspec.json.encode(answer))


def _reported(error: Any, is_event: bool = False) -> BrokenAnswerError:
    """What a server says in the field ``error`` of an answer, of a chunk or of a choice."""
    message = f"the backend reported an error in its answer: {message_of(error)}"
    return BrokenAnswerError(message, is_event)


def _says_anything(part: Json) -> bool:
    delta: Json = part.get("delta") or {}
    said = [part.get("text"), part.get("token_ids"), delta.get("tool_calls")]
    return any([*said, *(delta.get("function_call") or {}).values(), *map(delta.get, TEXTS)])


def _take_older(choice: Choice, piece: Json) -> Json:
    """A piece of a call in the older form, whose name comes once; nothing for an empty one."""
    name, arguments = piece.get("name") or "", _as_text(piece.get("arguments"))
    if name == choice.older_name:
        name = ""
    choice.older_name += name
    if not (choice.older_name or arguments):
        return {}
    return {"function_call": {"name": name, "arguments": arguments}}


def _number(index: Any) -> int | None:
    """What a server gives as an index, if it is one."""
    return index if type(index) is int and index >= 0 else None


def _as_text(arguments: Any) -> str:
    if isinstance(arguments, dict | list):
        return json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str | None):
        raise TypeError(f"the arguments of a tool call are {arguments!r}; expected a string")
    return arguments or ""


def _finish_reason(given: Any) -> str | None:
    said = given.get("type") if isinstance(given, dict) else given  # SGLang's own form
    if not said:
        return None
    if str(said).lower() in FAILED:
        raise BrokenAnswerError(f"the backend ended the answer with finish_reason {said!r}")
    return finish_reason(str(said))


def _take_texts(message: Json) -> bool:
    """Make strings of the texts of a message, or of a piece of one; whether there are any."""
    has_text = False
    for key in TEXTS:
        value = message.get(key)
        if value is None:
            continue
        if key == "content" and isinstance(value, list):
            parts = [_read_part(part) for part in value]
            value = message[key] = "".join(text for is_thought, text in parts if not is_thought)
            if thought := "".join(text for is_thought, text in parts if is_thought):
                message["reasoning_content"] = (message.get("reasoning_content") or "") + thought
        if type(value) is not str:
            raise TypeError(f"{key!r} is {shorten(repr(value).encode())}; expected a string")
        has_text = has_text or bool(value)
    return has_text


def _read_part(part: Json) -> tuple[bool, str]:
    """Whether a part of a content is a thought, and what it says."""
    kind = part["type"]
    if kind in ("text", "output_text"):
        return False, part["text"]
    if kind not in ("thinking", "reasoning"):
        raise ValueError(f"a part of type {kind!r}")
    said = part.get(kind) or part.get("text") or ""
    return True, said if isinstance(said, str) else "".join(_read_part(one)[1] for one in said)


class _Asked(Struct):
    n: Any = 1
    prompt: Any = None
    """Of completions, which may ask several; so may ``prompt_embeds``."""
    prompt_embeds: Any = None


def _count_choices(request: bytes) -> int:
    """How many answers a request asks for; very many where nobody knows."""
    try:
        asked = msgspec.json.decode(request, type=_Asked)
    except NOT_JSON:
        return sys.maxsize
    given = [one for one in (asked.prompt, asked.prompt_embeds) if isinstance(one, list)]
    several = len([one for prompts in given for one in prompts if isinstance(one, str | list)])
    return max(several, 1) * (_number(asked.n) or 1)
