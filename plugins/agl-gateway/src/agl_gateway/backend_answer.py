"""What a backend's answer says: messages, token ids, log-probabilities, weights and usage.

A field of another type than it should have is left out and named; all others are kept.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

import msgspec
from msgspec import Raw, Struct

from agl.semconv import ModelCallAttributes as Key
from agl_gateway.dialect import dumps
from agl_gateway.errors import NOT_JSON, shorten
from agl_gateway.normal_form import read_object

MOST_NAMED = 8
"""So many unreadable fields of one answer are named."""


_NOTHING = (b"null", b'""', b"[]", b"{}")
_ROLE = {"role"}
_CALLS = {"tool_calls", "function_call"}
_OF_CHOICE = ("token_ids", "logprobs", "model_version", "model_version_spans", "contradiction")
"""Ends of the keys of later choices; those of the first one are plain."""
_OF_FIRST = (
    Key.RESPONSE_TOKEN_IDS,
    Key.RESPONSE_LOGPROBS,
    Key.MODEL_VERSION,
    Key.VERSION_SPANS,
    Key.CONTRADICTION,
)
_OF_CALLS = ("tool_calls", "function_call")
"""Reasons to finish of an answer that calls a tool."""
_SPECIAL = re.compile(r"<[^<>]*>|\[[A-Z_]+\]")
"""Tokens that are no part of the text: ``<|im_end|>``, ``</s>``, ``[PAD]``."""


class _Token(Struct, gc=False):
    logprob: float


class _Logprobs(Struct):
    content: list[_Token] | None = None
    token_logprobs: list[float | None] | None = None
    """Of completions."""

    def values(self) -> list[float] | None:
        if self.content is not None:
            return [token.logprob for token in self.content]
        values = self.token_logprobs
        if values is None or None in values:
            return None
        return [value for value in values if value is not None]


class _Weights(Struct):
    """Which weights sampled the tokens of a choice from ``start`` to ``end``."""

    version: Any
    start: int | None = None
    end: int | None = None


class _Choice(Struct):
    index: Any = None
    message: Raw = Raw(b"null")
    text: str | None = None
    """Of completions."""
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    """Of completions; chat completions have it once for all choices."""
    logprobs: _Logprobs | None = None
    weight_versions: list[_Weights] | None = None
    stop_reason: Any = None
    """Of vLLM: the text that stopped it, or the id of a token."""
    matched_stop: Any = None
    """The same of SGLang."""
    goes_on_after_end: bool = False
    """Of a stream; ``StreamedAnswer`` sets it."""

    @property
    def is_text(self) -> bool:
        """Of completions; some servers of chat completions have a ``text``, too."""
        return self.text is not None and bytes(self.message) == b"null"

    def as_message(self) -> Any:
        return {"role": "assistant", "content": self.text} if self.is_text else self.message


class _Details(Struct):
    cached_tokens: int | None = None
    """Of the prompt."""
    reasoning_tokens: int | None = None
    """Of the answer."""


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class BackendAnswer(Struct):
    """A whole answer, as far as it can be read."""

    id: Any = None
    model: Any = None
    choices: list[_Choice] = []
    usage: _Usage | None = None
    prompt_token_ids: list[int] | None = None
    model_version: Any = None


_read = msgspec.json.Decoder(BackendAnswer).decode


def read_answer(body: bytes) -> tuple[BackendAnswer, list[str]]:
    """The answer, and which fields of it cannot be read; a ``ValueError`` if it is no object."""
    unreadable: list[str] = []
    try:
        return _read(body), unreadable
    except msgspec.ValidationError as error:
        answer = _known(BackendAnswer, body, "answer", unreadable)
        if answer is None:
            raise ValueError(str(error)) from None
        return answer, unreadable[:MOST_NAMED]


def _known(kind: Any, body: bytes | Raw, path: str, unreadable: list[str]) -> Any:
    """A value of this type with what of it can be read; None where nothing can."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        reason = str(error).partition(" - at ")[0]
    if get_origin(kind) is UnionType:
        kind = next(one for one in get_args(kind) if one is not NoneType)
    with suppress(msgspec.ValidationError, TypeError):  # no list or object; a field must be there
        if get_origin(kind) is list:
            (item,) = get_args(kind)
            items = [
                _known(item, raw, f"{path}[{number}]", unreadable)
                for number, raw in enumerate(msgspec.json.decode(body, type=list[Raw]))
            ]
            return None if None in items else items
        given = msgspec.json.decode(body, type=dict[str, Raw])
        known = {
            field.name: _known(field.type, given[field.name], f"{path}.{field.name}", unreadable)
            for field in msgspec.structs.fields(kind)
            if field.name in given
        }
        return kind(**{name: value for name, value in known.items() if value is not None})
    unreadable.append(f"{path}: {reason}")
    return None


def answer_attributes(answer: BackendAnswer, body: bytes) -> dict[str, Any]:
    """What a span has of the answer, read from ``body``; None for what that does not say."""
    attributes: dict[str, Any] = {
        Key.RESPONSE_ID: as_text(answer.id),
        Key.RESPONSE_MODEL: as_text(answer.model),
    }
    choices, fault = _in_order(answer.choices)
    if not choices:
        return attributes
    first = choices[0]
    usage = answer.usage or _Usage()
    cached, reasoned = usage.prompt_tokens_details, usage.completion_tokens_details
    prompt_ids = answer.prompt_token_ids or first.prompt_token_ids
    attributes |= {
        Key.OUTPUT_MESSAGES: dumps([choice.as_message() for choice in choices]).decode(),
        Key.FINISH_REASONS: [choice.finish_reason or "" for choice in choices],
        Key.INPUT_TOKENS: _count(usage.prompt_tokens, [prompt_ids]),
        Key.OUTPUT_TOKENS: _count(
            usage.completion_tokens, [choice.token_ids for choice in choices]
        ),
        Key.CACHED_INPUT_TOKENS: cached and _count(cached.cached_tokens),
        Key.REASONING_TOKENS: reasoned and _count(reasoned.reasoning_tokens),
        Key.PROMPT_TOKEN_IDS: prompt_ids or None,
    }
    for index, choice in enumerate(choices):
        keys = [f"{Key.CHOICE}.{index}.{name}" for name in _OF_CHOICE] if index else _OF_FIRST
        values = (
            choice.token_ids,
            (choice.logprobs and choice.logprobs.values()) or None,
            _version(choice, answer),
            _version_spans(choice),
            fault or _contradiction(choice, first, answer, body),
        )
        attributes |= zip(keys, values, strict=True)
    return attributes


def _contradiction(
    choice: _Choice, first: _Choice, answer: BackendAnswer, body: bytes
) -> str | None:
    """How a choice contradicts itself, in words."""
    if choice.goes_on_after_end:
        return f"its reason to finish is {choice.finish_reason!r}, and it goes on after it"
    if choice is not first and choice.prompt_token_ids not in (None, [], first.prompt_token_ids):
        return "it answers another prompt than the first choice"
    try:
        message = {} if choice.is_text else read_object(choice.message)
    except NOT_JSON:
        return None
    said = {key for key, value in message.items() if bytes(value) not in _NOTHING}
    reason = choice.finish_reason
    if reason in _OF_CALLS and message and not said & _CALLS:
        return f"its reason to finish is {reason!r}, and it has no call of a tool"
    # If the limit or a stop text ended the answer, tokens without a text are no contradiction.
    stopped_by = choice.stop_reason or choice.matched_stop
    is_text = choice.is_text and choice.text
    if reason == "length" or isinstance(stopped_by, str) or is_text or said - _ROLE:
        return None
    if choice.logprobs is None:
        return None
    # Its texts are read only here, as reading them takes longer than all else.
    given: Any = msgspec.json.decode(body)["choices"][answer.choices.index(choice)]["logprobs"]
    tokens: Any = given.get("tokens")  # of completions
    if choice.logprobs.content:
        tokens = [one.get("token") for one in given["content"]]
    texts = [token for token in (tokens or ())[:-1] if isinstance(token, str)]
    if unsaid := "".join(text for text in texts if not _SPECIAL.fullmatch(text)).strip():
        return f"it says nothing, and its tokens say {shorten(unsaid.encode(), 80)!r}"
    return None


def _in_order(choices: list[_Choice]) -> tuple[list[_Choice], str | None]:
    """By what agents call them, as a server may list them as they ended; and why nobody could."""
    if len(choices) < 2:
        return choices, None
    numbers = [choice.index for choice in choices]
    fault = None
    if {*map(repr, numbers)} not in ({"None"}, {*map(repr, range(len(numbers)))}):
        fault = f"the server's numbers of the {len(numbers)} choices are {numbers}"
    if all(type(number) is int for number in numbers) and len(set(numbers)) == len(numbers):
        choices = sorted(choices, key=lambda choice: choice.index)
    return choices, fault


def _version(choice: _Choice, answer: BackendAnswer) -> str | None:
    """The version of the weights; "3-4" where they changed from 3 to 4 meanwhile."""
    names = [str(one.version) for one in choice.weight_versions or ()]
    if not names:
        return None if answer.model_version is None else str(answer.model_version)
    *_, last = dict.fromkeys(names)  # that of the newest, where an older one came again
    return last if last == names[0] else f"{names[0]}-{last}"


def _version_spans(choice: _Choice) -> str | None:
    """Where weights changed meanwhile: versions, each with how many tokens they sampled."""
    spans = choice.weight_versions or []
    if len({str(one.version) for one in spans}) < 2:
        return None
    return dumps([[str(one.version), (one.end or 0) - (one.start or 0)] for one in spans]).decode()


def _count(given: int | None, sequences: Iterable[list[int] | None] = ()) -> int | None:
    is_number = given is not None and given >= 0  # a budget would grow by others
    return given if is_number else sum(len(ids or ()) for ids in sequences) or None


def as_text(value: Any) -> str | None:
    """A string, or None for anything else."""
    return value if isinstance(value, str) else None
