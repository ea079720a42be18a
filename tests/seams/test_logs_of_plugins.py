"""What plugins say is under the logger ``agl``, which the trainer and ``setup_logging`` show."""

import ast
import logging
from pathlib import Path

import pytest
import rich.highlighter

import agl
from agl_testing.echo_llm import EchoLLM

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
    elsewhere = [
        where
        for where, name in found
        if not (isinstance(name, ast.Constant) and str(name.value).startswith("agl."))
    ]
    assert len(found) > 10
    assert elsewhere == []


def test_rounds_and_verdict_of_a_prompt_run_are_shown_by_setup_logging(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @agl.rollout
    def greeter(task: str, prompt_template: agl.PromptTemplate) -> float:
        return float("Welcome" in prompt_template.format(guest=task))

    before = list(logging.getLogger("agl").handlers)
    agl.setup_logging("INFO")
    try:
        with EchoLLM(lambda body: "Welcome, {guest}!") as llm:
            agl.Trainer(
                algorithm=agl.APO(
                    base_url=llm.url, api_key="none", beam_rounds=1, run_dir=str(tmp_path)
                ),
                strategy="shm",
                n_runners=1,
                initial_resources={"prompt_template": agl.PromptTemplate(template="{guest}.")},
            ).fit(greeter, ["Ada", "Alan"], val_dataset=[f"Guest {n}" for n in range(20)])
    finally:
        logging.getLogger("agl").handlers[:] = before
        logging.getLogger("agl").propagate = True
    shown = " ".join(capsys.readouterr().err.split())
    assert "round 1: candidate" in shown
    assert "accepted: mean reward" in shown


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
