"""Which answers have the form that ``Normalizer`` makes: these it need not read."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from agl_gateway.errors import NOT_JSON

_FinishReason = Literal["stop", "length", "tool_calls", "content_filter"] | None
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
    finish_reason: None = None
    error: None = None


class _Chunk(Struct):
    choices: Annotated[list[_Part], Meta(min_length=1, max_length=1)]
    error: None = None


class _WholeChoice(Struct):
    message: _Message | UnsetType = UNSET
    text: str | UnsetType = UNSET
    """Of completions, which have no message."""
    finish_reason: _FinishReason = None
    error: None = None


class _Answer(Struct):
    choices: Annotated[list[_WholeChoice], Meta(min_length=1, max_length=1)]
    error: None = None


_read_chunk = msgspec.json.Decoder(_Chunk).decode
_read_answer = msgspec.json.Decoder(_Answer).decode


def is_plain_chunk(data: bytes) -> bool:
    """Whether a chunk has the one form, of choice 0, without a tool call, an end or an error."""
    try:
        _read_chunk(data)
    except NOT_JSON:
        return False
    return True


def is_plain_answer(body: bytes) -> bool:
    """Whether an unstreamed answer has the one form, of one choice."""
    try:
        answer = _read_answer(body)
    except NOT_JSON:
        return False
    return not any(one.message is UNSET and one.text is UNSET for one in answer.choices)
