"""Where an error arose: the same answer for `agl show`, the summary, the report and the doctor."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from tests.interpreter import python
from tests.stores import ask

import agl
import agl_views.tables.rollout_table
from agl.errors import AlgorithmError
from agl_inspect.doctor.findings import attempt_failure
from agl_inspect.show.rollout import failure
from agl_runs.user_code import digests_of, place_of

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
def test_place_of_an_error_is_in_the_agents_own_code_whatever_its_folder_is_called(folder):
    assert place_of(text_of(f"{folder}/agent.py", *OF_OTHERS)) == f"{folder}/agent.py:1"


def test_place_of_an_error_is_else_the_last_and_said_from_the_working_directory():
    assert place_of(text_of(*OF_OTHERS[:2])) == f"{json.__file__}:2"
    assert place_of(None) == ""
    assert place_of(text_of(f"{Path.cwd()}/agent.py")) == "agent.py:1"


CODE = {
    "my_parts": """
class Order:
    def order(self, tasks):
        return [task["word"] for task in tasks]

def estimate(inputs):
    raise ValueError("no estimate")
""",
    "my_kind": """
import agl
import my_parts

class Kind(my_parts.Order, agl.Algorithm):
    def run(self, train_dataset=None, val_dataset=None):
        try:
            self.order([{}])
        except KeyError as error:
            raise ValueError("no order") from error
""",
}


@pytest.fixture
def mine(own_modules):
    for name, text in CODE.items():
        (own_modules / f"{name}.py").write_text(text)
    sys.path.insert(0, str(own_modules))
    return own_modules


def test_all_code_of_the_user_that_options_name_is_told_from_other_code(mine):
    kind = importlib.import_module("my_kind").Kind
    options = {
        "environment": {"type": "my_kind:Kind"},
        "hooks": ["my_parts.Order", "ui", "json:loads"],
        "algorithm": {
            "type": "any",
            "estimator": {"type": "my_parts:estimate", "rewards": None},
            "task_order": "agl_learning.collect.task_order.Shuffled",
            "model": "no.such:thing",
        },
    }
    names = ["algorithm", "environment", "estimator", "hooks.0"]
    before = digests_of({"algorithm": kind()}, options)
    assert sorted(before) == names
    (mine / "my_kind.py").write_text(f"{CODE['my_kind']}\nmore = 1")
    after = digests_of({"algorithm": kind()}, options)
    assert [n for n in names if after[n] != before[n]] == names[:2]
    (mine / "my_parts.py").write_text(f"{CODE['my_parts']}\nmore = 1")  # of a base
    last = digests_of({"algorithm": kind()}, options)
    assert [n for n in names if last[n] != after[n]] == names


def test_an_algorithms_error_names_where_its_cause_arose_in_the_users_code(mine):
    with pytest.raises(AlgorithmError, match=r"failed: ValueError: no order \(my_parts.py:4\)$"):
        agl.Trainer(algorithm="my_kind:Kind", strategy="shm").fit(agl.rollout(lambda task: 1.0))


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


@pytest.mark.parametrize(
    ("agent", "type_", "line"),
    [
        ("app.parses", "json.decoder.JSONDecodeError", 7),
        ("app.answers", "agl.errors.AgentResultError", 9),
        ("app.waits", "agl.errors.AgentResultError", 13),
        ("app.Mine()", "agl.errors.AgentResultError", 18),
    ],
)
def test_result_show_and_doctor_name_the_line_of_the_agent(tmp_path, agent, type_, line):
    home = tmp_path / "agl"
    home.mkdir()
    (home / "app.py").write_text(AGENTS)
    (home / "run.py").write_text(RUN)
    done = python("run.py", agent, cwd=home, check=True)
    assert done.stdout.split() == [type_, f"app.py:{line}"]
    [rollout] = ask(home / "store.db", lambda store: store.query_rollouts())
    attempt = rollout.attempt
    place = f"{home}/app.py:{line}"
    assert next(iter(failure(attempt))) == f"failed in the agent, {place}"
    assert f"({place})" in attempt_failure(attempt, attempt.error).message
