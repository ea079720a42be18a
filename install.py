"""Install packages of this clone, with all that they need, where this Python installs.

    python install.py agl-torch
    python install.py 'agl-unsloth[trl]' 'agl-apo[gepa]' openai

Our packages are on no index yet, so pip alone does not find what they need of each other. Whatever
else is named, packages and options, goes to pip as it is.
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
REQUIREMENT = re.compile(r"^(agl-[a-z]+)(?:\[([\w,-]+)\])?")


def from_clone(*arguments: str) -> list[str]:
    """The arguments, and what they need of the clone, with folders for the names of our packages.

    Raises:
        SystemExit: The clone has no package of such a name.
    """
    found = list(arguments)
    for argument in found:  # grows
        found += [need for need in _needs(argument) if need not in found]
    return [REQUIREMENT.sub(_in_folder, each) for each in found]


def _needs(argument: str) -> list[str]:
    """What a package of ours, with its extras, needs of ours; of other arguments nothing."""
    if not argument.startswith("agl-"):
        return []
    ours = REQUIREMENT.fullmatch(argument)
    if ours is None or ours[1] not in FOLDERS:
        sys.exit(f"{argument}: not in this clone, which has {', '.join(sorted(FOLDERS))}")
    project = tomllib.loads((FOLDERS[ours[1]] / "pyproject.toml").read_text("utf-8"))["project"]
    needs = list(project["dependencies"])
    for extra in (ours[2] or "").split(","):
        needs += project.get("optional-dependencies", {}).get(extra, [])
    return [need.partition("~")[0] for need in needs if need.startswith("agl-")]


def _in_folder(ours: re.Match[str]) -> str:
    return f"{FOLDERS[ours[1]]}[{ours[2]}]" if ours[2] else str(FOLDERS[ours[1]])


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
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
