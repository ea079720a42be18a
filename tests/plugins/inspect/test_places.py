"""Where an error arose: the same answer for `agl show`, the summary, the report and the doctor."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

import agl
import agl_views.tables.rollout_table
from agl.types import Attempt
from agl_inspect.doctor.findings import attempt_failure
from agl_inspect.show.rollout import failure
from agl_runs.result import place_of

OF_OTHERS = [
    "/v/site-packages/openai/_base.py",
    json.__file__,
    agl.__file__,
    agl_views.tables.rollout_table.__file__,
    "<string>",
]


def text_of(*files: str) -> str:
    return "".join(f'  File "{path}", line {n}, in f\n    x\n' for n, path in enumerate(files, 1))


@pytest.mark.parametrize("folder", ["/a", "/home/me/agl", "/a/agl_mine", "/srv/agl_torch/agl"])
def test_place_of_an_error_is_in_the_agents_own_code_whatever_its_folder_is_called(
    folder: str,
) -> None:
    assert place_of(text_of(f"{folder}/agent.py", *OF_OTHERS)) == f"{folder}/agent.py:1"


def test_place_of_an_error_without_a_frame_of_the_agents_is_the_last() -> None:
    assert place_of(text_of(*OF_OTHERS[:2])) == f"{json.__file__}:2"
    assert place_of(None) == ""


def test_place_of_an_error_is_said_from_the_working_directory() -> None:
    assert place_of(text_of(f"{Path.cwd()}/agent.py")) == "agent.py:1"


AGENTS = """
import json
import agl

@agl.rollout
def parses(task: str) -> float:
    return json.loads(task)

@agl.rollout
def answers(task: str):
    return "a text"

@agl.rollout
async def waits(task: str):
    return float("nan")

class Mine(agl.LitAgent):
    def rollout(self, task, resources, rollout):
        return object()
"""
RUN = """
import sys
import agl
import app
store = agl.SqliteLightningStore("store.db")
result = agl.Trainer(store=store, strategy="shm", n_runners=1).dev(eval(sys.argv[1]), ["no"])
print(result.failures[0].type, result.failures[0].place)
"""


async def attempt_in(file: Path) -> Attempt:
    store = agl.SqliteLightningStore(file)
    [rollout] = await store.query_rollouts()
    await store.close()
    assert isinstance(rollout.attempt, Attempt)
    return rollout.attempt


@pytest.mark.parametrize(
    ("agent", "type_", "line"),
    [
        ("app.parses", "json.decoder.JSONDecodeError", 7),
        ("app.answers", "agl.errors.AgentResultError", 9),
        ("app.waits", "agl.errors.AgentResultError", 13),
        ("app.Mine()", "agl.errors.AgentResultError", 18),
    ],
)
def test_result_show_and_doctor_name_the_line_of_the_agent(
    tmp_path: Path, agent: str, type_: str, line: int
) -> None:
    home = tmp_path / "agl"
    home.mkdir()
    (home / "app.py").write_text(AGENTS)
    (home / "run.py").write_text(RUN)
    done = subprocess.run(
        [sys.executable, "run.py", agent], cwd=home, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [type_, f"app.py:{line}"]
    attempt = asyncio.run(attempt_in(home / "store.db"))
    place = f"{home}/app.py:{line}"
    assert next(iter(failure(attempt))) == f"failed in the agent, {place}"
    assert f"({place})" in attempt_failure(attempt, attempt.error).message
