"""What is not as it was when a run was last begun: named before it goes on."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeGuard, cast

from agl.algorithm.base import Algorithm
from agl_runs.description import options_of
from agl_runs.records import Run, RunCode, RunStart

_IGNORED: Final = re.compile(
    r"file|working_directory|run_dir|store\.path|train|val|algorithm\.(run_dir|resume_from|function)"
)
"""Where things lie; digests say whether the tasks are the same, and a name whether ``@algo`` is."""
_SAFE: Final = re.compile(
    r"(runners|concurrency|max_rollouts|hooks|strategy|runner|store)(\..*)?"
    r"|gateway\.run_budget(\..*)?|algorithm\.environment|environment\.(budget|price_per_hour|starts_per_minute|logs)"
    r"|.*\.(\w*timeout_seconds|base_url|api_base|host|port)"
)
"""Options of any component that change no result, only where servers are or when the run ends;
algorithms tell their own."""
_GIVEN: Final = ("agent", "algorithm", "reward")
"""Whose code a trainer has as objects, whatever its options name."""
_SHOWN: Final = 60
_ABSENT: Final = object()


def differences(before: Run, now: RunStart, algorithm: Algorithm) -> tuple[list[str], list[str]]:
    """What differs from the last start of a run: what is safe to change, and what is not."""
    safe: list[str] = [before.problem] if before.problem else []
    unsafe: list[str] = []
    # A trainer in Python records the algorithm's options only, and a file has all keys.
    both = before.config.keys() & now.config.keys()
    old, new = (flat({n: c[n] for n in c if n in both}) for c in (before.config, now.config))
    # A path may be an algorithm's type, say; its name is compared where the run is found.
    homes = before.folder, now.folder
    changed = [one for one in _changed(old, new, homes) if one[0] != "algorithm.type"]
    retyped = tuple(name.removesuffix("type") for name, _, _ in changed if name.endswith(".type"))
    for name, was, is_now in changed:
        if retyped and name.startswith(retyped) and not name.endswith(".type"):
            continue  # an option of another type
        grows = is_now is None or (_is_number(is_now) and _is_number(was) and was < is_now)
        more = _is_told(name, algorithm, "growing_options") and _is_number(was) and grows
        is_safe = more or _is_safe(name, algorithm)
        (safe if is_safe else unsafe).append(_text(name, was, is_now))
    if before.datasets:
        digests = [
            {name: f"{d.num_tasks} tasks ({d.digest})" for name, d in one.datasets.items()}
            for one in (before, now)
        ]
        for name, was, is_now in _changed(digests[0], digests[1]):
            unsafe.append(_text(f"{name} tasks", was, is_now))
    _compare_code(before.code, now.code, safe, unsafe)
    return safe, unsafe


def options_that_shape(
    algorithm: Algorithm, options: Mapping[str, Any] | None = None, growing: bool = False
) -> dict[str, Any]:
    """The options on which results depend, by dotted names; ``options`` are those of another start.

    ``growing`` takes those along that may become more.
    """

    def shapes(name: str) -> bool:
        grows = not growing and _is_told(name, algorithm, "growing_options")
        return not (_is_safe(name, algorithm) or grows)

    given = flat({"algorithm": options_of(algorithm) if options is None else options})
    return {n.removeprefix("algorithm."): value for n, value in given.items() if shapes(n)}


def options_then(
    before: Mapping[str, Any], now: Mapping[str, Any], algorithm: Algorithm
) -> dict[str, Any]:
    """The options of an earlier start that are others by now, whole; see ``shape_changes``."""
    given: list[dict[str, Any]] = [one.get("options") or {} for one in (before, now)]
    old, new = (options_that_shape(algorithm, one, growing=True) for one in given)
    changed = _changed(old, new, (before.get("folder"), now.get("folder"))) if old and new else ()
    names = {name.partition(".")[0] for name, _, _ in changed} - {"type", "credit"}
    return {name: given[0][name] for name in names if name in given[0]}


def _is_safe(name: str, algorithm: Algorithm) -> bool:
    return bool(_SAFE.fullmatch(name)) or _is_told(name, algorithm, "safe_options")


def _is_told(name: str, algorithm: Algorithm, kind: str) -> bool:
    block, _, option = name.partition(".")
    kind_of, _, of_part = option.partition(".")
    part, _, option_of_part = of_part.partition(".")
    parts: Mapping[str, Algorithm] = getattr(algorithm, "parts", {})
    if (block, kind_of) == ("algorithm", "models") and part in parts:
        return _is_told(f"{block}.{option_of_part}", parts[part], kind)
    told = {each for one in type(algorithm).__mro__ for each in vars(one).get(kind, ())}
    bare = f"{option}.every"  # as ``evaluation: 5``
    return block == "algorithm" and not told.isdisjoint({option, option.partition(".")[0], bare})


def what_shapes(start: RunStart) -> dict[str, Any]:
    """All on which the results of a run depend, options of its algorithm aside; JSON values.

    Who goes on compares it with what it was, name by name.
    """
    found = {
        name: value
        for name, value in flat(start.config).items()
        if not (value is None or name.startswith("algorithm.") or _SAFE.fullmatch(name))
    }
    found |= {f"{name} tasks": one.digest for name, one in start.datasets.items()}
    found |= {f"version of {name}": _series(one) for name, one in start.code.versions.items()}
    sources = {n: digest for n, digest in start.code.sources.items() if not _SAFE.fullmatch(n)}
    found |= {f"the {name}'s source file": digest for name, digest in sources.items()}
    return json.loads(json.dumps(found, default=str))


def shape_changes(
    before: Mapping[str, Any], now: Mapping[str, Any], algorithm: Algorithm, growing: bool = False
) -> list[str]:
    """What differs between two starts, for people; nothing of a part that one of them lacks.

    Args:
        before: ``options``, of ``options_of``, ``others``, of ``what_shapes``, and ``folder`` of
            the run.
        now: Likewise.
        algorithm: What it says now of its options counts, whatever it said then.
        growing: Whether options count that may become more.
    """
    found: list[str] = []
    homes = before.get("folder"), now.get("folder")
    before, now = (
        {**one, "options": options_that_shape(algorithm, one.get("options") or {}, growing)}
        for one in (before, now)
    )
    for part in ("options", "others"):
        old, new = (cast("Mapping[str, Any]", one.get(part) or {}) for one in (before, now))
        # One was begun from Python, which records less.
        is_like = ("agent" in old) == ("agent" in new)
        for name, was, is_now in _changed(old, new, homes) if old and new else ():
            is_plugin_more = was is _ABSENT and name.startswith("version of ")
            if not is_plugin_more and (is_like or _ABSENT not in (was, is_now)):
                found.append(_text(name, was, is_now))
    return found


def _text(name: str, was: Any, is_now: Any) -> str:
    return f"{name}: {_shown(was)} then, {_shown(is_now)} now"


def _compare_code(old: RunCode, new: RunCode, safe: list[str], unsafe: list[str]) -> None:
    for name, was, version in _changed(old.versions, new.versions):
        if was is _ABSENT:
            continue  # a plugin more changes nothing
        text = f"{name}: version {_shown(was)} then, {_shown(version)} now"
        is_patch = version is not _ABSENT and _series(was) == _series(version)
        (safe if is_patch else unsafe).append(text)
    for name, was, digest in _changed(old.sources, new.sources):
        # An option that names no code any more is another option, which is said already.
        if was is not _ABSENT and (digest is not _ABSENT or name in _GIVEN):
            text = _text(f"the {name}'s source file", was, digest)
            (safe if _SAFE.fullmatch(name) else unsafe).append(text)
    if old.commit is not None and new.commit != old.commit:
        safe.append(f"git commit: {old.commit[:12]} then, {(new.commit or 'none')[:12]} now")


def flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested options by dotted names, without those that say where things lie."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{above}{key}"
        if _IGNORED.fullmatch(name):
            continue
        if isinstance(value, Mapping) and value:
            found |= flat(cast("Mapping[str, Any]", value), f"{name}.")
        else:
            found[name] = value
    return found


def _changed(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    homes: tuple[str | None, str | None] = (None, None),
) -> Iterator[tuple[str, Any, Any]]:
    """What differs; ``homes`` are the folders of the run, then and now.

    A path is as it was where it is the same, or lies the same way from the run's folder: a run may
    move with its model.
    """
    for name in dict.fromkeys((*old, *new)):
        was, now = old.get(name, _ABSENT), new.get(name, _ABSENT)
        # What is left out and what is None are the same to a constructor.
        if was == now or {was is _ABSENT or was is None, now is _ABSENT or now is None} == {True}:
            continue
        if not (_is_path(was) and _is_path(now) and _from(homes[0], was) == _from(homes[1], now)):
            yield name, was, now


def _is_path(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and os.path.isabs(value)


def _from(folder: str | None, path: str) -> str:
    return os.path.relpath(*map(os.path.realpath, (path, folder))) if folder else path


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _series(version: str) -> list[str]:
    """What a patch release leaves as it is."""
    return version.split(".")[:2]


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "none"
    text = value if isinstance(value, str) else repr(value)
    if len(text) <= _SHOWN:
        return text
    return f"…{text[1 - _SHOWN :]}" if _is_path(value) else f"{text[: _SHOWN - 1]}…"
