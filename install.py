"""Install packages of this clone, with all that they need, where this Python installs.

    python install.py agl-torch
    python install.py 'agl-unsloth[trl]' 'agl-apo[gepa]' openai
    python install.py -e '../my-plugin[test]'

Our packages are on no index yet, so pip alone does not find what they need of each other, nor what
a plugin of yours needs of them. Whatever else is named, packages and options, goes to pip as it is.
"""

import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from shutil import which

CLONE = Path(__file__).resolve().parent
FOLDERS = {"agl-core": CLONE / "core", "agl-agentlightning": CLONE / "compat/agentlightning"}
FOLDERS |= {path.name: path for path in CLONE.glob("[lp]*/agl-*")}
OURS = re.compile(r"^agl_[\w-]+")
"""Names of the index, where "agl_core" is "agl-core", too."""
REQUIREMENT = re.compile(r"^(agl-[a-z]+)(?![\w-])(?:\[([\w,-]+)\])?")


def from_clone(*arguments: str) -> list[str]:
    """The arguments, and what they need of the clone, with folders for the names of our packages.

    Raises:
        SystemExit: The clone has no package of such a name, or that no such extra.
    """
    found = [OURS.sub(lambda name: name[0].replace("_", "-"), each) for each in arguments]
    for argument in found:  # grows
        found += [need for need in _needs(argument) if need not in found]
    return [REQUIREMENT.sub(_in_folder, each) for each in found]


def _needs(argument: str) -> list[str]:
    """What a package, of ours or in a folder, needs of ours with its extras; of others nothing."""
    name, _, extras = argument.partition("[")
    if name.startswith("agl-") and not (name in FOLDERS and REQUIREMENT.fullmatch(argument)):
        sys.exit(f"{argument}: not in this clone, which has {', '.join(sorted(FOLDERS))}")
    pyproject = FOLDERS.get(name, Path(name)) / "pyproject.toml"
    if not pyproject.is_file():
        return []
    project = tomllib.loads(pyproject.read_text("utf-8")).get("project", {})
    needs = list(project.get("dependencies", ()))
    known = project.get("optional-dependencies", {})
    for extra in filter(None, extras.removesuffix("]").split(",")):
        if extra not in known:
            sys.exit(f"{argument}: {name} has no extra {extra!r}; it has {', '.join(known)}")
        needs += known[extra]
    found = [REQUIREMENT.match(need) for need in needs]
    return [one[0] for one in found if one is not None and one[1] in FOLDERS]


def _in_folder(ours: re.Match[str]) -> str:
    return f"{FOLDERS[ours[1]]}[{ours[2]}]" if ours[2] else str(FOLDERS[ours[1]])


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    if {"-h", "--help"} & {*sys.argv[1:]}:
        sys.stdout.write(str(__doc__))
        sys.exit()
    packages = from_clone(*sys.argv[1:])
    pip = [sys.executable, "-m", "pip", "install"]
    if find_spec("pip") is None:  # an environment that uv made
        beside = Path(sys.executable).with_name("uv")
        uv = str(beside) if beside.exists() else which("uv")
        if uv is None:
            sys.exit(
                f"{sys.executable} has no pip, and there is no uv. Run: "
                f"python3 -m pip --python {sys.executable} install pip"
            )
        pip = [uv, "pip", "install", "--python", sys.executable]
    sys.exit(subprocess.run([*pip, *packages]).returncode)
