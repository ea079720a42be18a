"""The versions that agl-verl works with, and a check of what is installed before a run starts.

verl moves fast, leaves some of its needs out of its metadata, and a wrong pair of versions shows
itself late, in a worker. ``check_versions`` compares the installed packages with ``WANTED`` and
names every one that does not fit, with the line for pip.

``constraints/cpu.txt`` has a set that our tests have run with. ``conflicts`` looks further, at what
those packages need in their turn.
"""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution, version

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from agl.errors import ConfigError, install_line

WANTED = {
    "verl": ">=0.9.0,<0.10",
    "torch": ">=2.8",
    "ray": ">=2.41",
    "transformers": ">=5.5.3,<5.11,!=5.6.0",
    "tensordict": ">=0.8,<=0.10.0,!=0.9.0",
    "TransferQueue": ">=0.1.10,<0.2",
    "cachetools": "",
    "fastapi": "",
    "uvicorn": "",
}
"""What a run needs: what verl 0.9 asks for, and the four packages that its V1 trainer imports
without asking for them."""


def _installed(name: str) -> str | None:
    """The installed version of a package, None where there is none; imports nothing."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def check_versions(found: dict[str, str | None] | None = None) -> None:
    """Compare what is installed with ``WANTED``.

    Args:
        found: Package to version or None; None looks.

    Raises:
        ConfigError: Packages are missing or of versions that do not fit; all are named, with what
            was wanted and what to run.
    """
    found = {name: _installed(name) for name in WANTED} if found is None else found
    problems = [
        f"{name} {have or 'is not installed'}, wanted {wanted or 'any version'}"
        for name, wanted in WANTED.items()
        if not _fits(have := found.get(name), wanted)
    ]
    if problems:
        first = "" if found.get("torch") else " (torch first, in the build for your machine)"
        raise ConfigError(
            f"algorithm 'verl' cannot run with these packages: {'; '.join(problems)}. "
            f"Run: {install_line('agl-verl[backend]')}{first}"
        )


def conflicts(names: Iterable[str] = tuple(WANTED)) -> list[str]:
    """What installed packages need and do not have, from some of them to the last that they need.

    An agent's framework may have brought an older protobuf than Ray's parts take, for example; Ray
    then does not start, and does not say why.
    """
    found: list[str] = []
    left = [Requirement(name) for name in names]
    seen: set[tuple[str, frozenset[str]]] = set()
    while left:
        wanted = left.pop()
        extras = frozenset(wanted.extras)
        if (wanted.name, extras) in seen:
            continue
        seen.add((wanted.name, extras))
        try:
            package = distribution(wanted.name)
        except PackageNotFoundError:
            continue
        for needed in map(Requirement, package.requires or ()):
            marker = needed.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                continue
            have = _installed(needed.name)
            if not _fits(have, str(needed.specifier)):
                found.append(
                    f"{package.name} {package.version} needs {needed.name}{needed.specifier}, and "
                    f"{have or 'none'} is installed"
                )
            left.append(needed)
    return sorted(set(found))


def _fits(have: str | None, wanted: str) -> bool:
    return have is not None and SpecifierSet(wanted).contains(Version(have), prereleases=True)
