"""GRPO ends before its end and goes on: books, metrics and queue are those of one run."""

import json
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from tests import fork_server
from tests.stores import opened

import agl
from agl_learning.reports.report import Report
from agl_learning.run.checkpoint import Progress, making
from agl_learning.run.folder import begin_generation, hold_run, mark_lost, read_generation
from agl_records.ledger.documents import put_parts
from agl_records.ledger.ledger import load_parts
from agl_records.ledger.tables import Accounts
from agl_records.types import LedgerPart
from agl_runs.store import query_runs

pytest.importorskip("torch")

SCRIPT = Path(__file__).with_name("grpo_run.py")
CALLS_PER_STEP = 4
"""And one for each evaluation: before the first step, and after every second one."""


def run(folder: Path, **options: object) -> subprocess.CompletedProcess[str]:
    return fork_server.run([SCRIPT, folder, json.dumps(options)])


def kill(folder: Path, **options: object) -> None:
    """A run that is killed at a call of its agent."""
    done = run(folder, **options)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]


def grpo(model: str = "a model", **options: object) -> agl.GRPO:
    algorithm = agl.GRPO(model, **options)
    algorithm.set_llm_proxy(agl.LLMProxy())
    return algorithm


def steps_of(folder: Path, metric: str = "reward/mean") -> list[int]:
    lines = map(json.loads, (folder / "run/metrics.jsonl").read_text().splitlines())
    return [line["step"] for line in lines if metric in line]


async def look(folder: Path) -> tuple[Accounts, list[agl.Rollout]]:
    async with opened(folder / "store.db") as store:
        return await Accounts.read(store), list(await store.query_rollouts())


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Killed in step 4, after a checkpoint and an evaluation at step 2, and then resumed."""
    folder = tmp_path_factory.mktemp("killed")
    # Evaluations after 0 and 2: 2 calls. The second call of step 4.
    kill_at = 3 * CALLS_PER_STEP + 2 + 2
    options = {"checkpoints": 2, "evaluation": 2}
    kill(folder, kill_at=kill_at, **options)
    done = run(folder, resume_from=str(folder / "run"), **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


async def test_the_store_has_the_run_as_its_folder_has_it(killed: Path) -> None:
    async with opened(killed / "store.db") as store:
        (run,) = await query_runs(store)
    now = read_generation(killed / "run")
    found = run.run_id, run.generations[-1].number, run.folder
    assert found == (now.run, now.number, str(killed / "run"))
    assert [each.outcome for each in run.generations] == ["died", "finished"]


async def test_the_ledger_after_kill_and_resume_is_the_summary(killed: Path) -> None:
    accounts, _ = await look(killed)
    summary = json.loads((killed / "run/summary.json").read_text())
    total = accounts.total.as_json()
    # Those of step 4 that the kill cut off ran once more; of one the answer may have come.
    cut_off = summary["rollouts"] - 5 * CALLS_PER_STEP - 4
    assert cut_off in (3, 4)
    assert summary["rollouts_failed"] == 0  # they were cancelled
    assert total["rollouts"]["total"] == summary["rollouts"]
    assert total["calls"]["total"] == summary["calls"]
    assert total["calls"]["trained"] == summary["calls_trained"]
    assert total["calls"]["excluded"] == summary["calls_excluded"]
    assert accounts.lost == 0  # step 3 was trained from the checkpoint on with what it had


def test_no_step_stands_twice_in_the_metrics(killed: Path) -> None:
    assert steps_of(killed) == [1, 2, 3, 4, 5]
    assert steps_of(killed, "val/reward/mean") == [0, 2, 4, 5]


def test_the_summary_covers_the_whole_run(killed: Path) -> None:
    summary = json.loads((killed / "run/summary.json").read_text())
    assert (summary["steps"], len(summary["rewards"])) == (5, 5)
    assert [step for step, _ in summary["val_rewards"]] == [0, 2, 4, 5]
    saved = {int(path.name[-6:]) for path in (killed / "run/checkpoints").glob("step-*")}
    best = max((reward, step) for step, reward in summary["val_rewards"] if step in saved)
    assert Path(summary["best_checkpoint"]).name == f"step-{best[1]:06d}"


async def test_what_the_killed_part_left_is_cancelled_and_never_claimed(killed: Path) -> None:
    _, rollouts = await look(killed)
    ended = Counter((r.metadata["generation"], r.status) for r in rollouts if r.metadata)
    # Of the four of step 4 one may have ended before the kill; the rest runs again.
    assert (cut_off := ended[1, "cancelled"]) in (3, 4)
    assert ended[1, "succeeded"] + cut_off == 4 * CALLS_PER_STEP + 2
    assert ended[2, "succeeded"] == CALLS_PER_STEP + 2 + cut_off
    assert ended.total() == len(rollouts)
    # No agent of the second part met the address of the first.
    endpoints = (killed / "endpoints.txt").read_text().splitlines()
    before, after = endpoints[: 3 * CALLS_PER_STEP + 3], endpoints[3 * CALLS_PER_STEP + 3 :]
    assert len(after) == CALLS_PER_STEP + 2 + cut_off
    addresses = [{url.split("/rollout/")[0] for url in part} for part in (before, after)]
    assert addresses[0].isdisjoint(addresses[1])


async def test_an_account_says_which_weights_came_out_and_which_sampled(killed: Path) -> None:
    async with opened(killed / "store.db") as store:
        parts = [part for part in await agl.load_parts(store) if part.mode == "train"]
    run = read_generation(killed / "run")
    assert {part.run for part in parts} == {run.run}
    assert {(part.step, part.generation) for part in parts} == {
        (1, 1), (2, 1), (3, 2), (4, 2), (5, 2)
    }  # fmt: skip
    for part in parts:
        for one in part.trained:
            if one.kind == "call":
                assert int(part.version) == int(one.model_version) + 1


async def test_a_budget_that_is_spent_amid_a_step_loses_nothing_of_it(tmp_path: Path) -> None:
    def fit(calls: int, **more: object) -> tuple[str, int]:
        done = run(tmp_path, steps=3, run_budget={"calls": calls}, **more)
        assert done.returncode == 0, done.stderr[-3000:]
        claimed = len((tmp_path / "endpoints.txt").read_text().splitlines())
        return " ".join(done.stderr.split()), claimed

    async def ends() -> list[tuple[str | None, str | None]]:
        async with opened(tmp_path / "store.db") as store:
            (run,) = await query_runs(store)
            items = [one for part in await load_parts(store) for one in part.trained]
        trained = [one.key for one in items if one.kind == "call"]
        assert len(trained) == len(set(trained))
        return [(one.outcome, one.error) for one in run.generations]

    refused, why = CALLS_PER_STEP - 1, "the budget of the run is spent (calls 6 of 6)"
    said, claimed = fit(calls=1 + CALLS_PER_STEP + 1)
    assert f"{why}: it ends with what it has" in said
    assert "go on with Trainer(run=" in said
    assert (steps_of(tmp_path), claimed) == ([1], 6 + refused)
    assert await ends() == [("stopped", why)]
    # Only what was refused runs once more.
    _, claimed = fit(calls=1000, resume=True)
    assert (steps_of(tmp_path), claimed) == ([1, 2, 3], 3 * CALLS_PER_STEP + 2 + refused)
    assert [outcome for outcome, _ in await ends()] == ["stopped", "finished"]


async def test_what_a_run_left_is_cancelled_when_another_goes_on_from_its_checkpoint(tmp_path):
    kill(tmp_path, kill_at=2 * CALLS_PER_STEP + 3, checkpoints=1)
    other = str(tmp_path / "other")
    done = run(tmp_path, steps=3, resume_from=str(tmp_path / "run"), run_dir=other)
    assert done.returncode == 0, done.stderr[-3000:]
    _, rollouts = await look(tmp_path)
    dead = read_generation(tmp_path / "run").run
    assert {r.status for r in rollouts if r.metadata["run"] != dead} == {"succeeded"}
    ended = Counter(r.status for r in rollouts if r.metadata["run"] == dead)
    assert set(ended) == {"succeeded", "cancelled"}
    # Of step 3 of the dead run none was run by runners of the other one.
    assert ended["succeeded"] <= 2 * CALLS_PER_STEP + 2


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"resume_from": "run", "steps": 1}, "is at step 1, and steps is 1"),
        ({"resume_from": "run/checkpoints/step-000009"}, "no checkpoint to resume from"),
        ({"run_dir": "run"}, "holds another run already"),
        ({"resume_from": "run", "run_dir": "other"}, "other' holds another run already"),
        ({"resume_from": "early", "run_dir": "other"}, "other' holds another run already"),
    ],
)
async def test_nothing_is_cancelled_for_a_start_that_is_refused(
    tmp_path: Path, memory_store: agl.LightningStore, options: dict, why: str
) -> None:
    folder = tmp_path / "run"
    progress = Progress(step=1, version=1)
    with making(folder / "checkpoints/step-000001", progress) as partial:
        (partial / "model.safetensors").write_bytes(b"weights")
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    metadata = begin_generation(folder).metadata
    for name in ("early", "other"):
        begin_generation(tmp_path / name)
        (tmp_path / name / "metrics.jsonl").write_text('{"step": 1}\n')
    await memory_store.enqueue_rollout("task", metadata=metadata)
    paths = ("resume_from", "run_dir")
    options = {key: str(tmp_path / v) if key in paths else v for key, v in options.items()}
    with pytest.raises(agl.errors.ConfigError, match=why):
        await grpo(**options).clear_leftovers(memory_store)
    assert [r.status for r in await memory_store.query_rollouts()] == ["queuing"]
    await grpo(steps=2, resume_from=str(folder)).clear_leftovers(memory_store)
    assert [r.status for r in await memory_store.query_rollouts()] == ["cancelled"]


async def test_metrics_after_the_checkpoint_are_dropped_and_lost_ones_come_back(tmp_path) -> None:
    report = Report(agl.Baseline(), "grpo", tmp_path, 5, 3, show_progress=False)
    for step in (1, 3, 4):
        await report.step(step, {"step": step, "generation": 1})
    report.write({"step": "2"})  # by others
    report.write({"note": 1})
    await report.evaluation(3, {"step": 3, "val/reward/mean": 1.0})
    assert report.go_back(3, evaluated=False) == {1, 3}
    assert report.go_back(3, True, [{"step": 2}]) == {1, 2, 3}
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]


def test_a_run_keeps_where_it_began_until_it_begins_anew(tmp_path: Path) -> None:
    assert begin_generation(tmp_path, origin="b").origin == "b"
    assert begin_generation(tmp_path).origin == "b"
    assert begin_generation(tmp_path, origin=None).origin is None
    assert read_generation(tmp_path).origin is None


async def test_nothing_of_a_live_run_is_cancelled(memory_store, tmp_path) -> None:
    generation = begin_generation(tmp_path)
    rollout = await memory_store.enqueue_rollout("task", metadata=generation.metadata)
    algorithm = grpo("none", resume_from=str(tmp_path))
    with hold_run(tmp_path), pytest.raises(agl.errors.ConfigError, match="in use by process"):
        await algorithm.clear_leftovers(memory_store)
    assert (await memory_store.get_rollout_by_id(rollout.rollout_id)).status == "queuing"
    await algorithm.clear_leftovers(memory_store)  # it is dead
    assert (await memory_store.get_rollout_by_id(rollout.rollout_id)).status == "cancelled"


async def test_what_a_start_went_back_behind_does_not_count(memory_store) -> None:
    rollout = await memory_store.enqueue_rollout("task")

    def part(run_id: str, step: int, generation: int) -> LedgerPart:
        about = {"step": step, "generation": generation, "run": run_id}
        return LedgerPart(rollout_id=rollout.rollout_id, **about)

    async def counting(run_id: str) -> list[tuple[int | None, int]]:
        parts = await load_parts(memory_store, run=run_id)
        return [(one.step, one.generation) for one in parts]

    await put_parts(memory_store, [part(run, step, 1) for run in "ab" for step in (1, 2, 3)])
    await mark_lost(memory_store, "a", lambda one: one.step > 2)
    assert await counting("a") == [(1, 1), (2, 1)]
    await put_parts(memory_store, [part("a", 3, 2)])  # it is done again
    assert await counting("a") == [(1, 1), (2, 1), (3, 2)]
    assert await counting("b") == [(1, 1), (2, 1), (3, 1)]


def test_a_folder_keeps_the_id_of_its_run_and_counts_its_starts(tmp_path: Path) -> None:
    assert read_generation(tmp_path) is None
    first, second = begin_generation(tmp_path), begin_generation(tmp_path)
    assert (first.number, second.number) == (1, 2)
    assert first.run == second.run
    assert read_generation(tmp_path) == second
    (tmp_path / "run.json").write_text('{"run": 1')
    with pytest.raises(agl.errors.ConfigError, match=r"run\.json.*cannot be read"):
        begin_generation(tmp_path)


async def test_a_run_of_another_algorithm_is_not_gone_on_from(tmp_path, memory_store) -> None:
    folder, home = tmp_path / "run", tmp_path / "home"
    begin_generation(folder, algorithm="sft")
    with making(home / "checkpoints/step-000001", Progress(step=1, version=1)) as partial:
        (partial / "logits.json").write_text("[]")
    begin_generation(home, algorithm="reinforce")
    alone = tmp_path / "alone/step-000001"
    with making(alone, Progress(step=1, version=1, start={"algorithm": "reinforce"})):
        pass
    with making(tmp_path / "versions/0001", {"loss": 2.0}):
        pass
    before = (folder / "run.json").read_bytes()
    for given, why in (
        ({"resume_from": str(folder)}, "holds a run of 'sft', and this is 'grpo'"),
        ({"run_dir": str(folder)}, "holds a run of 'sft', and this is 'grpo'"),
        ({"resume_from": str(home)}, "holds a run of 'reinforce', and this is 'grpo'"),
        ({"resume_from": str(tmp_path / "versions/0001")}, "no checkpoint of a run"),
        ({"resume_from": str(alone)}, "another algorithm: 'reinforce' then, 'grpo' now"),
    ):
        with pytest.raises(agl.errors.ConfigError, match=why):
            await grpo(**given).clear_leftovers(memory_store)
    assert (folder / "run.json").read_bytes() == before


async def test_checkpoints_may_lie_behind_a_link(tmp_path, memory_store) -> None:
    disk, folder = tmp_path / "disk", tmp_path / "run"
    with making(disk / "step-000001", Progress(step=1, version=1)):
        pass
    begin_generation(folder, algorithm="grpo")
    (folder / "metrics.jsonl").write_text("")
    (folder / "checkpoints").symlink_to(disk)
    origin = grpo(resume_from=str(folder)).find_start()
    assert (origin.is_same_run, origin.folder, origin.progress().step) == (True, folder, 1)
