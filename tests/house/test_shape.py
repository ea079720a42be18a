"""The tower stays as small as it was built."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
AGL = ROOT / "core/src/agl"
ROOMS, LINES = 20, 400
TOO_LONG = {
    "core/src/agl/trainer.py",
    "plugins/agl-adapters/src/agl_adapters/calls.py",
    "plugins/agl-adapters/src/agl_adapters/rows.py",
    "plugins/agl-apo/src/agl_apo/evaluate.py",
    "plugins/agl-gateway/src/agl_gateway/proxy.py",
    "plugins/agl-torch/src/agl_torch/grpo.py",
    "plugins/agl-unsloth/src/agl_unsloth/loop.py",
    "plugins/agl-verl/src/agl_verl/advantages.py",
}
"""Modules that hold a second idea; names go from here, none come."""


def test_top_level_has_few_rooms() -> None:
    rooms = {path.stem for path in AGL.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert len(rooms - {"__init__", "__pycache__"}) <= ROOMS


def test_modules_are_short() -> None:
    sources = [*AGL.rglob("*.py"), *ROOT.glob("libs/*/src/**/*.py")]
    sources += ROOT.glob("plugins/*/src/**/*.py")
    long = {
        str(path.relative_to(ROOT))
        for path in sources
        if len(path.read_text(encoding="utf-8").splitlines()) > LINES
    }
    assert long <= TOO_LONG


def test_imports_of_every_distribution_are_checked() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    sources = [ROOT / "core", *ROOT.glob("libs/*"), *ROOT.glob("plugins/*")]
    packages = {path.parent.name for root in sources for path in root.glob("src/*/__init__.py")}
    assert packages == set(settings["tool"]["importlinter"]["root_packages"])
