"""What a page hands over to be drawn."""

import contextlib
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from agl.utils.text import did_you_mean
from agl_ui.charts import Steps
from agl_ui.data_sources import DataSource


@dataclass
class Page:
    """A template with its values."""

    template: str
    values: dict[str, Any]
    source: DataSource | None = None
    tab: str = ""
    """Which of the store's tabs it belongs to."""
    state: str = ""
    """Of the store when it was drawn; empty for a page that does not change."""
    about: str = ""
    """The rollout that it is about, and whose changes alone it follows; empty for the store."""
    has_prompts: bool = False
    """Whether its store has a tab for them."""
    status: int = 200
    problems: list[str] = field(default_factory=list[str])
    """Records that were passed over, as they are damaged."""


def check_query(request: Request, names: Collection[str]) -> None:
    """Refuse what an address says and its page does not know.

    Args:
        request: What is asked.
        names: What the page knows; one with a ``*`` after it may be given several times.

    Raises:
        HTTPException: It says something else, or one thing twice.
    """
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        number = given.count(name)
        if f"{name}*" not in names and (name not in names or number > 1):
            text = f"{name[:50]} is given {number} times; expected once"
            if name not in names:
                known = ", ".join(one.removesuffix("*") for one in sorted(names)) or "nothing"
                text = f"{name[:50]}={request.query_params[name][:50]!r}: there is no {name[:50]} "
                text += f"here; this page knows {known}."
                text += did_you_mean(name, [one.removesuffix("*") for one in names])
            raise HTTPException(400, text)


def number_of(request: Request, name: str) -> float | None:
    """A number of the query; None where there is none.

    Raises:
        HTTPException: It is no finite number.
    """
    given = request.query_params.get(name, "").strip()
    with contextlib.suppress(ValueError):
        if not given or math.isfinite(float(given)):
            return float(given) if given else None
    raise HTTPException(400, f"{name}={given[:50]!r}: expected a number")


def whole_number(request: Request, name: str, default: int | None = None) -> int | None:
    """A number of the query; the default where there is none.

    Raises:
        HTTPException: It is no whole number from 0.
    """
    given = request.query_params.get(name, "").strip()
    if not given:
        return default
    if not (given.isascii() and given.isdigit() and len(given) < 16):
        raise HTTPException(400, f"{name}={given[:50]!r}: expected a whole number from 0")
    return int(given)


def steps_of(request: Request) -> Steps:
    """The first and the last step that charts are asked to show.

    Raises:
        HTTPException: There is no step between them.
    """
    first, last = whole_number(request, "from"), whole_number(request, "to")
    if first is not None and last is not None and first > last:
        raise HTTPException(400, f"from={first} is behind to={last}: expected the first step first")
    return first, last
