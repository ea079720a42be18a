"""What must not be written down: values that agl was given as secrets, and what has their form."""

import re
from collections.abc import Mapping
from typing import Any, Final

HIDDEN: Final = "***"
SHORTEST: Final = 8
"""Characters of a value that is hidden wherever it stands; shorter ones would hit words."""
_MOST_VALUES = 1000
_LONGEST = 2**20
"""Longest text in which forms are looked for, at about 10 MB a second; values are in every one."""

_SECRET_NAME = re.compile(
    r"(?:(?:api|access|private|secret)[_-]?key|(?<!pad_)(?<!bos_)(?<!eos_)token|password|secret"
    r"|credentials|authorization|headers|(?-i:[A-Z\d]_KEY))[_\d]*$",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Whether an option or a variable of this name has a secret for its value."""
    return _SECRET_NAME.search(name) is not None


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


# Each takes a time that is linear in the text: an agent may have written it.
_TOKEN_IN_PATH = re.compile(r"(/attempt/[^/\s]{1,200}/token/)[^/\s'\"?#]+")
_PASSWORD = re.compile(r"(://[^/@\s:]{0,200}:)[^/@\s]+(?=@)")
_FORMS = (
    _TOKEN_IN_PATH,
    _PASSWORD,
    re.compile(r"\b((?:Bearer|Basic) )(?=\S{0,200}\d)[\w.~+/=-]{8,}"),
    # Tokens of a store, see agl_http.tokens; keys of OpenAI, AWS, Hugging Face and GitHub.
    re.compile(r"()\b[a-z]{5,7}\.\d+\.\d+\.[\w~-]*\.[0-9a-f]{32}\b"),
    re.compile(r"()(?<![\w-])(?:sk-(?=[\w-]*\d)[\w-]{20,}|(?:AKIA|ASIA)[A-Z\d]{16}\b)"),
    re.compile(r"()\b(?:hf_[A-Za-z\d]{34}|gh[a-z]_[A-Za-z\d]{36,}|github_pat_\w{50,})\b"),
)


def hide(text: str) -> str:
    """The text with ``***`` in place of secrets: of known ones, and of what has their form."""
    for value in sorted(_met, key=len, reverse=True):  # one may be the beginning of another
        text = text.replace(value, HIDDEN)
    for form in _FORMS if len(text) <= _LONGEST else ():
        text = form.sub(rf"\1{HIDDEN}", text)
    return text


def hide_tokens(attributes: Mapping[str, object]) -> dict[str, str]:
    """Those attributes that have our own tokens in addresses, without these; no others."""
    return {
        name: _PASSWORD.sub(rf"\1{HIDDEN}", _TOKEN_IN_PATH.sub(rf"\1{HIDDEN}", value))
        for name, value in attributes.items()
        if isinstance(value, str) and ("/token/" in value or "://agl:" in value)
    }
