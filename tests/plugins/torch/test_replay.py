"""``agl replay``: a stored step of a real run, trained again."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests import fork_server
from tests.digests import digests
from tests.interpreter import AGL
from tests.run_project import succeeds
from tests.step_records import step_records
from tests.stores import opened

from agl.emitter import reward_attributes
from agl.types import Span

pytest.importorskip("torch")
pytest.importorskip("openai")

from .conftest import build_model, write_project

STEPS = 5
OPTIONS = {"deterministic": True, "torch_threads": 1, "learning_rate": 0.01, "show_progress": False}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """A deterministic run of five steps, with checkpoints after 2, 4 and 5."""
    home = tmp_path_factory.mktemp("finished")
    tokenizer.save_pretrained(home / "model")
    build_model().save_pretrained(home / "model")
    options = {"steps": STEPS, "checkpoints": {"every": 2}, **OPTIONS}
    write_project(home, "sum(map(len, text.split()))", ["red", "green", "blue"], **options)
    ended = fork_server.run([*AGL, "run", "agl.yaml"], cwd=home)
    assert ended.returncode == 0, ended.stderr
    return home


@pytest.fixture
def project(finished: Path, own_modules: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which a test may change."""
    home = own_modules / "project"
    shutil.copytree(finished, home)
    monkeypatch.chdir(home)
    return home


@pytest.fixture
def agl_command(project: Path, agl):
    return agl


def run_id(project: Path) -> str:
    return json.loads((project / "out/run.json").read_text())["run"]


def replay(command, project: Path, step: int, *more: str) -> tuple[object, Any]:
    where = ("--step", str(step), "--path", str(project / "out"))
    code, out, err = command("replay", run_id(project), *where, "--json", *more)
    return code, json.loads(out) if out else err


def rollouts_of_step(project: Path, step: int) -> list[tuple[int, str]]:
    records = asyncio.run(step_records(project / "out/store.db"))
    return records[f"train-{step - 1}"]["rollouts"]


def change_record(project: Path, step: int, **changes: Any) -> None:
    asyncio.run(step_records(project / "out/store.db", step, **changes))


async def change(project: Path, rollout_id: str) -> None:
    """Give a rollout another final reward, as an algorithm may do afterwards."""
    async with opened(project / "out/store.db") as store:
        attempt = await store.get_latest_attempt(rollout_id)
        assert attempt is not None
        owner = {"rollout_id": rollout_id, "attempt_id": attempt.attempt_id}
        reward = reward_attributes(99.0)
        span = Span.from_attributes(name="agl.annotation", attributes=reward, **owner)
        assert await store.add_span(span.model_copy(update={"writer": "algorithm"}))


@pytest.mark.parametrize(("step", "begun_at"), [(1, 0), (2, 0), (3, 2), (5, 4)])
def test_a_step_trained_again_is_equal_bit_for_bit(
    agl_command, project: Path, step: int, begun_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.parent)  # its model is found beside its file all the same
    before = digests(project / "out")
    code, found = replay(agl_command, project, step)
    assert (code, found["first_difference"]) == (0, None), found
    assert (found["begun_at"], found["is_exact"]) == (begun_at, True)
    same = {one["what"]: one["same"] for one in found["compared"]}
    # Nothing is left out that could differ.
    assert set(same.values()) == {True}
    compared = {"bins", "rewards", "advantages", "rows trained", "loss/total", "grad_norm"}
    assert same.keys() >= {*compared, f"weights after step {step}"}
    assert digests(project / "out") == before


def test_a_changed_reward_is_named_as_the_first_difference(agl_command, project: Path) -> None:
    _, changed = rollouts_of_step(project, 3)[1]
    asyncio.run(change(project, changed))
    code, found = replay(agl_command, project, 3)
    assert (code, found["first_difference"]) == (1, "bins")
    by_name = {one["what"]: one for one in found["compared"]}
    assert changed in by_name["rewards"]["where"]
    assert "99.0 now" in by_name["rewards"]["where"]
    for name in ("rewards", "advantages", "rows trained", "weights after step 3"):
        assert by_name[name]["same"] is False
    assert by_name["weights after step 2"]["same"] is True
    code, out, _ = agl_command("replay", run_id(project), "--step", "3", "--path", "out")
    assert (code, "differs; first in bins" in out) == (1, True)
    # What came before it is what it was.
    assert replay(agl_command, project, 2)[0] == 0


def test_changed_weights_before_the_step_are_the_first_difference(agl_command, project: Path):
    change_record(project, 2, weights="0" * 32)
    code, found = replay(agl_command, project, 3)
    assert (code, found["first_difference"]) == (1, "weights after step 2")


def test_a_step_that_was_not_trained_is_refused_by_name(agl_command, project: Path) -> None:
    code, err = replay(agl_command, project, STEPS + 2)
    assert code == 2
    assert f"no step {STEPS + 2} of the run in" in err
    assert f"it has steps 1 to {STEPS}" in err


def test_deleted_rollouts_are_named_with_what_is_left(agl_command, project: Path) -> None:
    (group, _), *others = rollouts_of_step(project, 2)
    change_record(project, 2, rollouts=[(group, "ro-gone"), *others])
    shutil.rmtree(project / "out/checkpoints/step-000002")
    code, err = replay(agl_command, project, 3)
    assert code == 2
    assert "does not have 1 of 8 rollouts of step 2 (ro-gone)" in err
    assert "What can be trained again: steps 1 to 1 and those after step 4" in err


def test_a_damaged_checkpoint_is_left_out_for_the_one_before(agl_command, project: Path):
    (project / "out/checkpoints/step-000004/model.safetensors").write_bytes(b"damaged")
    code, found = replay(agl_command, project, 5)
    assert (code, found["begun_at"]) == (0, 2)


def test_a_run_from_a_checkpoint_that_is_gone_says_what_can_be_trained(agl_command, project):
    here = project / "out/run.json"
    record = json.loads(here.read_text())
    here.write_text(json.dumps({**record, "origin": str(project / "gone/checkpoints/step-000009")}))
    code, err = replay(agl_command, project, 2)
    assert code == 2
    assert "step-000009" in err
    assert "What can be trained again: those after step 2" in err
    assert replay(agl_command, project, 3)[0] == 0


def test_a_run_of_grpo_is_rederived_with_what_its_ledger_gave(agl_command, project: Path):
    (project / "replay_judge.py").write_text("def shorter(reward):\n    return -reward\n")
    before = digests(project / "out")
    how = ("--reward", "replay_judge:shorter", "--path", "out", "--json")
    found = json.loads(succeeds(agl_command, "rederive", run_id(project), *how).out)
    assert found["rollouts"] == found["records"] == STEPS * 2 * 4
    for one in found["tasks"]:
        assert one["before"] == one["credit_before"] != 0
        assert one["now"] == one["credit_now"] == -one["before"]
    assert digests(project / "out") == before
