"""The code of a run's user: its source files, and where in it an error was raised."""

import ast
import functools
import gc
import hashlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

_FRAME = re.compile(r'^\s*File "(.+)", line (\d+)', re.M)
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]|^<")
_AGL = re.compile(r"(.*[/\\](agl(?:_\w+)?))[/\\]")
_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)*[:.][A-Za-z_]\w*(\.\w+)*")
"""``module:attribute`` or ``package.module.Attribute``."""


def is_installed(file: str) -> bool:
    """Whether it is of the standard library, installed, or agl's own, wherever that lies."""
    if _INSTALLED.search(file) or file.startswith(os.path.dirname(os.__file__)):
        return True
    folder, name = match.groups() if (match := _AGL.match(file)) else ("", "agl")
    found = find_spec(name)
    return found is not None and folder in (found.submodule_search_locations or ())


def place_of(trace: str | None) -> str:
    """``file:line`` of the last frame that the user wrote, else of the last; or ""."""
    frames: list[tuple[str, str]] = _FRAME.findall(trace or "")
    own = [frame for frame in frames if not is_installed(frame[0])] or frames
    return ":".join(own[-1]).removeprefix(f"{Path.cwd()}{os.sep}") if own else ""


def place_in(error: BaseException) -> str:
    """``file:line`` of the user's code in which an error arose, or what caused it; or ""."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and (place := place_in(cause)):
        return place
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not is_installed(frame.filename)]
    return place_of("".join(traceback.format_list(own)))


def put_on_path(*folders: str | Path) -> None:
    """Have modules looked for in these folders, in the first one first, while the process lives."""
    for entry in map(str, reversed(folders)):
        if entry in sys.path:
            sys.path.remove(entry)
        sys.path.insert(0, entry)


def source_file(thing: Any) -> Path | None:
    """The file that a function or class was written in; None for one of a notebook, say."""
    try:
        found = inspect.getsourcefile(inspect.unwrap(thing))
    except (TypeError, OSError):  # OSError: a class of a ``__main__`` that has no file
        return None
    return Path(found).resolve() if found is not None and Path(found).is_file() else None


def written(thing: Any) -> Any:
    """The function that was decorated, or a partial calls; of any other object its class."""
    if isinstance(thing, functools.partial):
        thing = cast("functools.partial[Any]", thing).func
    thing = getattr(thing, "function", thing)  # of @rollout and @algo
    is_written = inspect.isroutine(thing) or inspect.isclass(thing)
    return thing if is_written else cast(Any, type(thing))


def digests_of(objects: Mapping[str, object], config: Mapping[str, Any]) -> dict[str, str]:
    """What tells the user's source files from others, by what they are the source of.

    Args:
        objects: Name -> what was given: a function, a class, or an object of one.
        config: Options by name. Each that is a path, as ``estimator.type: module:function``, counts
            under its own name, ``estimator``; ``algorithm`` in front of it is left out.
    """
    found = {**dict(_named(config)), **{name: written(one) for name, one in objects.items()}}
    files = {name: _files_of(one) for name, one in found.items()}
    return {name: digest_of(*each) for name, each in files.items() if each}


def digest_of(*files: Path) -> str:
    """What tells files from others, as code; ``resume`` and ``force`` of a script do not count."""
    return hashlib.sha256(b"".join(map(_code, files))).hexdigest()[:16]


def _code(file: Path) -> bytes:
    content, collects = file.read_bytes(), gc.isenabled()
    gc.disable()  # in Python 3.11 parsing fails if another thread parses while a finalizer runs
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return content
    finally:
        if collects:
            gc.enable()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            node.keywords = [one for one in node.keywords if one.arg not in ("resume", "force")]
    return ast.dump(tree).encode()


def _named(values: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """What the paths among options lead to, of modules that are imported."""
    if isinstance(values, str):
        found = _imported(values) if _PATH.fullmatch(values) else None
        if inspect.isroutine(found) or inspect.isclass(found):
            yield name.removesuffix(".type").removeprefix("algorithm."), found
        return
    if isinstance(values, Mapping):
        items = cast("Mapping[str, Any]", values).items()
    else:
        items = enumerate(cast("list[Any]", values)) if isinstance(values, list) else ()
    for key, value in items:
        yield from _named(value, f"{name}.{key}" if name else str(key))


def _imported(path: str) -> Any:
    module, _, attributes = path.partition(":") if ":" in path else path.rpartition(".")
    found: Any = sys.modules.get(module)
    if is_installed(getattr(found, "__file__", None) or "<"):
        return None
    for name in attributes.split("."):
        found = getattr(found, name, None)
    return found


def _files_of(thing: Any) -> list[Path]:
    """The user's own files in which it is written; of a class, its bases' too."""
    parts = inspect.getmro(thing) if inspect.isclass(thing) else (thing,)
    files = dict.fromkeys(filter(None, map(source_file, parts)))
    return [file for file in files if not is_installed(str(file))]
