"""What plugins say is under the logger ``agl``, which the trainer and ``setup_logging`` show."""

import ast
from pathlib import Path

import pytest
import rich.highlighter

import agl

ROOT = Path(__file__).parents[2]
SOURCES = [*ROOT.glob("plugins/*/src/**/*.py"), *ROOT.glob("examples/third-party-plugin/*.py")]


def _loggers(file: Path) -> list[tuple[str, ast.expr]]:
    """Where a file asks for a logger that it logs to itself, and the argument."""
    return [
        (f"{file.relative_to(ROOT)}:{node.lineno}", node.value.args[0])
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr == "getLogger"
    ]


def test_every_logger_of_a_plugin_is_under_agl() -> None:
    found = [one for file in SOURCES for one in _loggers(file)]
    names = {where: getattr(name, "value", "") for where, name in found}
    assert len(found) > 10
    assert [where for where, name in names.items() if not str(name).startswith("agl.")] == []


def test_no_highlighter_searches_what_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich's own takes a time that grows with the square of a word's length."""
    searched: list[object] = []
    monkeypatch.setattr(
        rich.highlighter.ReprHighlighter, "highlight", lambda self, text: searched.append(text)
    )
    logger = agl.setup_module_logging("INFO", name="agl.test_highlighter")
    try:
        logger.info("%s 1 None 'quoted' http://127.0.0.1", "x=" * 10)
        assert searched == []
    finally:
        logger.handlers.clear()
