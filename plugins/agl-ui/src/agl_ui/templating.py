"""Templates, and how numbers, times and texts stand in them."""

import functools
import json
import shlex
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

import jinja2

from agl_ui.plain import cut, marked, plain

STATUS_MARKS = {
    "succeeded": "ok",
    "finished": "ok",
    "running": "busy",
    "preparing": "busy",
    "busy": "busy",
    "queuing": "wait",
    "requeuing": "wait",
    "idle": "wait",
    "failed": "bad",
    "damaged": "bad",
    "died": "bad",
    "timeout": "bad",
    "unresponsive": "bad",
    "cancelled": "off",
    "stopped": "off",
    "unknown": "off",
}
"""Status -> the class of its badge."""


@functools.cache
def environment() -> jinja2.Environment:
    """The environment of all pages: everything is escaped, and made plain, unless it is markup."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("agl_ui"),
        autoescape=True,
        finalize=plain,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "number": number,
        "seconds": seconds,
        "when": when,
        "short": short,
        "marked": marked,
        "cut": cut,
        "pretty": pretty,
        "mark": lambda status: STATUS_MARKS.get(status, "off"),
        "count": count,
        "q": lambda value: quote(str(value), safe=""),
        "query": query,
        "sh": lambda value: shlex.quote(str(value)),
    }
    return found


def number(value: Any, digits: int = 4) -> str:
    """A number as people read it; a dash for none."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, float) and value != value:
        return "nan"
    text = f"{value:.{digits}g}" if isinstance(value, float) else str(value)
    return text.replace("-", "−") if "e" not in text else text


def count(value: float) -> str:
    """A number of things, with its thousands apart."""
    is_whole = isinstance(value, float) and value.is_integer()
    return (f"{value:,.0f}" if is_whole else f"{value:,}").replace(",", "\u2009")


def seconds(value: float | None) -> str:
    """A duration in the unit that suits it."""
    if value is None:
        return "–"
    if value < 1:
        return f"{value * 1000:.3g} ms"
    if value < 100:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def when(value: float | None) -> str:
    """A moment, in UTC to the second."""
    try:
        return "–" if value is None else f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%S}Z"
    except (OverflowError, ValueError, OSError):
        return "at no time"


def short(value: Any, most: int = 100) -> str:
    """A value in one line."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return cut(" ".join(text[: 4 * most].split()), most)


def pretty(value: Any) -> str:
    """A value as JSON in lines; text as it is."""
    if isinstance(value, str):
        return value
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def query(given: dict[str, Any], **changes: Any) -> str:
    """A query string of what was given, with changes; what is None or empty is left out."""
    both = {**given, **changes}
    kept = {name: value for name, value in both.items() if value not in (None, "", [])}
    return f"?{urlencode(kept, doseq=True, errors='replace')}" if kept else "?"
