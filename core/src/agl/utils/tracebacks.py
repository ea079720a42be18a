"""Where in a traceback the agent's author is."""

import os
import re
from importlib.util import find_spec
from pathlib import Path

_FRAME = re.compile(r'^\s*File "(.+)", line (\d+)', re.M)
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]|^<")
_AGL = re.compile(r"(.*[/\\](agl(?:_\w+)?))[/\\]")


def place_of(traceback: str | None) -> str:
    """``file:line`` of the last frame that the agent's author wrote, else of the last; or ""."""
    frames: list[tuple[str, str]] = _FRAME.findall(traceback or "")
    own = [frame for frame in frames if not _is_of_others(frame[0])] or frames
    return ":".join(own[-1]).removeprefix(f"{Path.cwd()}{os.sep}") if own else ""


def _is_of_others(file: str) -> bool:
    """Whether it is of the standard library, installed, or agl's own, wherever that lies."""
    if _INSTALLED.search(file) or file.startswith(os.path.dirname(os.__file__)):
        return True
    folder, name = match.groups() if (match := _AGL.match(file)) else ("", "agl")
    found = find_spec(name)
    return found is not None and folder in (found.submodule_search_locations or ())
