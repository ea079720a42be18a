"""What must not be written down: in records by its name, in any text by its value or its form.

The values are those that this process was given: keys of models, tokens, and keys among environment
variables. A word beside a name is no secret: it must not vanish from what people read.
"""

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

HIDDEN: Final = "***"
SHORTEST: Final = 8
"""Characters of a value that is hidden wherever it stands; shorter ones would hit words."""
_MOST_VALUES = 1000
_LONGEST = 2**20
"""Longest text in which forms are looked for, at about 10 MB a second; values are in every one."""

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_is_secret_word = re.compile(
    "apikey|auth|authorization|bearer|cookies?|credentials?|headers|passphrase|passwd|password"
    "|secrets?|webhook"
).fullmatch
_SECRET_PAIRS = {
    *(("connection", "string"), ("webhook", "url")),
    *((one, many) for one in ("access", "api", "auth", "secret") for many in ("keys", "tokens")),
}
# A key or a token is a secret, unless it is one of a record, or one of a vocabulary.
_is_plain_before = {
    "key": re.compile(
        "answer|cache|column|data|dataset|dict|field|foreign|group|idempotency|index|input|json"
        "|label|lookup|map|messages?|metric|of|on|output|parent|partition|primary|prompt|public"
        "|question|response|reward|row|score|sort|state|task|text|unique"
    ).fullmatch,
    "token": re.compile(
        "additional|assistant|audio|begin|bos|cls|decoder|end|eoi|eos|extra|fim|first|image|last"
        "|mask|new|next|on|pad|per|prompt|response|sep|special|start|stop|system|think|time|tool"
        "|unk|user|video"
    ).fullmatch,
}


@lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """Whether values under this name are never to be shown."""
    words = tuple(word.lower() for word in _WORDS.findall(name))
    if not words:
        return False
    last = words[-1]
    if last in _is_plain_before:
        # ``token`` alone is one, and ``key`` alone is not.
        return not _is_plain_before[last](words[-2]) if len(words) > 1 else last == "token"
    return bool(_is_secret_word(last)) or words[-2:] in _SECRET_PAIRS


def name_within(name: str, key: str) -> str:
    """The name by which ``is_secret`` judges ``key`` within ``name``: every header is secret."""
    in_body = f"{name}_{key}" if name == "extra_body" else key
    return name if is_secret(name) else in_body


# --- values

_met: dict[str, None] = {}


def learn(value: str | None) -> None:
    """Hide a value from now on, wherever agl writes text down."""
    if value is not None and len(value) >= SHORTEST and value not in _met:
        if len(_met) >= _MOST_VALUES:
            del _met[next(iter(_met))]
        _met[value] = None


def learn_keys(resources: Mapping[str, Any]) -> None:
    """Hide the keys of the models among resources."""
    for resource in resources.values():
        learn(resource.__dict__.get("api_key"))


# Neither a word nor a path; one of AWS has 40 characters, and may begin with a slash.
_is_key = re.compile(
    r"(?=[\w/+]{40}$|(?!\.{0,2}[/~]|[A-Za-z]:\\))(?=.*\d)(?=.*[A-Za-z])\S{12,}"
).fullmatch


def learn_environment() -> None:
    """Hide the keys among environment variables: what looks like one, under the name of one."""
    for name, value in os.environ.items():
        if is_secret(name) and _is_key(value):
            learn(value)


# --- forms

_TOKEN_IN_PATH = re.compile(r"(/attempt/[^/\s]{1,200}/token/)[^/\s'\"?#]+")
_PASSWORD = re.compile(r"(?<=://)([^/@\s:]{0,200}):[^/@\s]+(?=@)")
# Each needs a time linear in the text: an agent may have written it. A form is looked for where the
# text has one of the pieces before it, which takes a hundredth of the time.
_FORMS: tuple[tuple[tuple[str, ...], re.Pattern[str], str], ...] = (
    (("/token/",), _TOKEN_IN_PATH, rf"\1{HIDDEN}"),
    (("://",), _PASSWORD, rf"\1:{HIDDEN}"),
    # Tokens of a store; see agl.store.tokens.
    ((".0.", ".1."), re.compile(r"\b[a-z]{5,7}\.\d+\.\d+\.[\w~-]*\.[0-9a-f]{32}\b"), HIDDEN),
    (("://",), re.compile(r"(?<=://)[^/@\s:]{16,}(?=@)"), HIDDEN),
    (
        ("Bearer ", "Basic "),
        re.compile(r"\b((?:Bearer|Basic) )(?=\S{0,200}\d)[\w.~+/=-]{8,}"),
        rf"\1{HIDDEN}",
    ),
)


def hide(text: str) -> str:
    """The text with ``***`` in place of secrets: of known ones, and of what has their form."""
    for value in sorted(_met, key=len, reverse=True):  # one may be the beginning of another
        text = text.replace(value, HIDDEN)
    for pieces, form, change in _FORMS if len(text) <= _LONGEST else ():
        if any(piece in text for piece in pieces):
            text = form.sub(change, text)
    return text


def hide_tokens(attributes: Mapping[str, object]) -> dict[str, str]:
    """Those attributes that have our own tokens in addresses, without these.

    All else is the agent's, and stays.
    """
    return {
        name: _PASSWORD.sub(rf"\1:{HIDDEN}", _TOKEN_IN_PATH.sub(rf"\1{HIDDEN}", value))
        for name, value in attributes.items()
        if isinstance(value, str) and ("/token/" in value or "://agl:" in value)
    }
