"""Which answers have the form that ``Normalizer`` makes: these it need not read."""

from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, Raw, Struct

from agl_gateway.errors import NOT_JSON

_ENDS = (b"null", b'"stop"', b'"length"', b'"tool_calls"', b'"content_filter"')
_NULL = Raw(b"null")
_Name = Annotated[str, Meta(min_length=1)]


class _Function(Struct):
    name: _Name
    arguments: str


class _Call(Struct):
    id: _Name
    function: _Function


class _Texts(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    function_call: None = None


class _Message(_Texts):
    tool_calls: list[_Call] | None = None


class _Delta(_Texts):
    tool_calls: None = None


class _Part(Struct):
    index: Annotated[int, Meta(ge=0, le=0)]
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: None = None
    error: None = None


class _Chunk(Struct):
    choices: Annotated[list[_Part], Meta(min_length=1, max_length=1)]
    error: None = None


_read_chunk = msgspec.json.Decoder(_Chunk).decode
_read_message = msgspec.json.Decoder(_Message).decode
read_object = msgspec.json.Decoder(dict[str, Raw]).decode
"""The fields of a JSON object, each as the bytes that it came as."""
read_objects = msgspec.json.Decoder(list[dict[str, Raw]]).decode


class WholeAnswer(NamedTuple):
    """An unstreamed answer, taken apart."""

    body: bytes
    fields: dict[str, Raw]
    choices: list[dict[str, Raw]]


def is_normal_chunk(data: bytes) -> bool:
    """Whether a chunk has the one form, of choice 0, without a tool call, an end or an error."""
    try:
        _read_chunk(data)
    except NOT_JSON:
        return False
    return True


def open_whole(body: bytes) -> WholeAnswer:
    """Take an unstreamed answer apart; a ``ValueError`` if it is none."""
    fields = read_object(body)
    if not bytes(fields.get("choices", _NULL)).startswith(b"["):
        raise ValueError("it has no list of choices")
    return WholeAnswer(body, fields, read_objects(fields["choices"]))


def is_normal_answer(answer: WholeAnswer) -> bool:
    """Whether an unstreamed answer has the one form, of one choice."""
    if len(answer.choices) != 1 or bytes(answer.fields.get("error", _NULL)) != b"null":
        return False
    (choice,) = answer.choices
    if bytes(choice.get("finish_reason", _NULL)) not in _ENDS:
        return False
    if bytes(choice.get("error", _NULL)) != b"null":
        return False
    if "message" not in choice:  # of completions
        return bytes(choice.get("text", _NULL)).startswith(b'"')
    try:
        _read_message(choice["message"])
    except NOT_JSON:
        return False
    return True
