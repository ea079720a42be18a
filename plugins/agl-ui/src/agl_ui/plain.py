"""Text of agents and models made fit for a page: what would act or deceive is written out.

Jinja escapes HTML. What is left are characters that a browser obeys in plain text: marks that turn
the direction of what follows, escapes of terminals, which a reader may copy into one, characters
without width, and half characters, which no encoding has.
"""

import re
from collections.abc import Callable
from typing import Any

from markupsafe import Markup, escape

_ODD = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def plain(value: Any) -> Any:
    """A text with odd characters as escapes; anything else as it is."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _ODD.sub(_written, value) if _ODD.search(value) else value
    return "" if value is None else value


def marked(text: str) -> Markup:
    """HTML of a text, with odd characters as escapes that stand out."""
    parts: list[str] = []
    last = 0
    for found in _ODD.finditer(text):
        parts += [
            escape(text[last : found.start()]),
            f'<span class="odd" title="a character that does not show">{_written(found)}</span>',
        ]
        last = found.end()
    return Markup("".join([*parts, escape(text[last:])]))


def _written(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:x}"


def cut(text: str, most: int, where: Callable[[int], str] | None = None) -> str:
    """The beginning of a text, with a remark on what is missing."""
    more = len(text) - most
    if more <= 0:
        return text
    return f"{text[:most]}…" if where is None else f"{text[:most]}{where(more)}"
