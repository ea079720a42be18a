"""The command lines of Agent Lightning's documents: our command, our examples, or refused."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .seed_blocks import SEEDS, documents

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.nightly
COMMAND = re.compile(
    r"(?:AGL_\w+=\S+ )*(?:dotenv run (?:-- )?)?"
    r"(?:agl |agentlightning |agent-lightning |python3? \S+\.py|python3? -m agentlightning|bash )"
)
FOLDERS = {
    script: folder
    for folder, scripts in {
        "spider": "sql_agent.py train_sql_agent.py",
        "calc_x": "train_calc_agent.py calc_agent.py",
        "unsloth": "sft_rollout_runners.py sft_algorithm.py sft_allinone.py",
        "apo": "room_selector_apo.py apo_custom_algorithm.py apo_debug.py "
        "apo_custom_algorithm_trainer.py",
        "azure": "capital_agent.py train_capital_agent.py",
        "chartqa": "prepare_data.py debug_chartqa_agent.py train_chartqa_agent.py",
        "claude_code": "claude_code_agent.py",
        "rag": "wiki_retriever_mcp.py train_rag.py",
        "tinker": "hello.py q20_train.py q20_evaluate.py",
        "search_r1": "train_search_r1_agent.py",
    }.items()
    for script in scripts.split()
}
"""Where each script of the documents stands in examples/."""
OTHERS = {
    "agent-lightning ": "tests/examples/test_seed_service.py runs them",
    "python your_script.py": "a reader's own script",
    "bash ../../scripts/restart_ray.sh": "ray stop and ray start",
    "bash data_process.sh": "examples/search_r1/README.md says how the data are made",
    "bash retrieval_launch.sh": "examples/search_r1/README.md says how the server is started",
    "python tests/test_mcp_calculator.py": "tests/examples/test_calc_x.py",
    "python spider_eval/convert_dataset.py": "examples/spider/README.md says the format",
    # The agent of 0.1's document, of which examples/spider has 0.3's form.
    "python sql_agent.py --litsqlagent": "python train_sql_agent.py",
}
"""Command lines, by their beginnings, that have another place or are another's affair."""


def commands() -> list[str]:
    """Each command line once, continued lines joined, without comments and without dotenv."""
    found: dict[str, None] = {}
    for document in sorted(SEEDS.glob("00*")):
        text = re.sub(r"\\\s*(#.*)?\n", " ", document.read_text(encoding="utf-8"))
        for line in text.splitlines():
            line = re.sub(r"\s+", " ", line.strip())
            if COMMAND.match(line):
                line = re.sub(r"^((?:AGL_\w+=\S+ )*)dotenv run (-- )?", r"\1", line)
                found[re.sub(r" #.*", "", line)] = None
    return list(found)


def arguments(line: str) -> tuple[dict[str, str], list[str]]:
    words = shlex.split(line)
    variables = {}
    while re.match(r"AGL_\w+=", words[0]):
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    return variables, words


@documents
@pytest.mark.parametrize("line", commands() if SEEDS.is_dir() else [], ids=lambda line: line[:70])
def test_command_line_is_known(line: str, tmp_path: Path) -> None:
    _, words = arguments(line)
    if any(line.startswith(other) for other in OTHERS):
        return
    if words[0] == "agl":
        assert_store_starts(words, tmp_path)
    elif words[0] == "agentlightning" or words[1] == "-m":
        assert_refused(words, tmp_path)
    else:
        assert_example_takes(Path(words[1]).name, words[2:])


def assert_store_starts(words: list[str], folder: Path) -> None:
    """``agl store ...`` serves until it is told to stop; on a free port."""
    command = [str(Path(sys.executable).with_name("agl")), *words[1:], "--port", "0"]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        assert server.stdout
        said = ""
        while "http://" not in said:
            line = server.stdout.readline()
            assert line, said
            said += line
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0, said + server.stdout.read()


def assert_refused(words: list[str], folder: Path) -> None:
    """Commands of 0.1 and of no release say what to use, or what to install."""
    if words[0].startswith("python"):
        words[0] = sys.executable
    else:
        words[0] = str(Path(sys.executable).with_name(words[0]))
    run = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert run.returncode != 0
    assert "Traceback" not in run.stderr
    assert "agl" in run.stderr or "no such dataset file" in run.stderr


def assert_example_takes(script: str, given: list[str]) -> None:
    """The example is there, and its help names each option and each word that is given to it."""
    path = ROOT / "examples" / FOLDERS[script] / script
    assert path.is_file(), path
    if not given:
        return
    words = [sys.executable, str(path)]
    if not given[0].startswith("-"):
        words += [given[0]] if any(word.startswith("-") for word in given) else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(
        (str(path.parent), os.environ.get("PYTHONPATH", ""))
    )}  # fmt: skip
    run = subprocess.run([*words, "--help"], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    for word in given:
        if word.startswith("--") or (word == given[0] and len(words) == 2):
            assert word.partition("=")[0] in run.stdout, f"{script} does not take {word}"
