"""The reward of a rollout is the same from every kind of store, and counts where it succeeded."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import agl
from agl.emitter import find_final_reward, reward_attributes
from agl.semconv import AGL_ANNOTATION, AGL_REWARD, LightningSpanAttributes as Key
from agl_learning import final_rewards as module
from agl_learning.final_rewards import FinalReward, final_rewards, reward_text
from agl_learning.listing import Wanted, listed

pytestmark = pytest.mark.plugins

Given = list[tuple[str, dict[str, Any]]]
OURS = AGL_ANNOTATION
OTHER: tuple[str, dict[str, Any]] = ("step of a tool", {"tool": "search"})


def ours(value: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    return OURS, {**reward_attributes(0.0), f"{Key.REWARD}.0.value": value, **more}


CASES: dict[str, tuple[Given, float | None]] = {
    "one of ours": ([OTHER, ours(0.2)], 0.2),
    "under another name": ([OTHER, ("judge", reward_attributes(0.9))], 0.9),
    "a later one under another name": ([ours(0.2), ("judge", reward_attributes(0.9))], 0.9),
    "an earlier one under another name": ([("judge", reward_attributes(0.9)), ours(0.2)], 0.2),
    "far behind it": ([ours(0.2), *[OTHER] * 20, ("judge", reward_attributes(0.9))], 0.9),
    "far before the end": ([ours(0.2), *[OTHER] * 300], 0.2),
    "of another tool": (
        [("op", {"agentops.task.output": '{"type": "reward", "value": 0.4}'})],
        0.4,
    ),
    "an older name": ([ours(0.1), (AGL_REWARD, reward_attributes(0.3))], 0.3),
    "refused at last": ([ours(0.2), ours(1e300)], None),
    "refused under another name": ([ours(0.2), *[OTHER] * 9, ("judge", ours("high")[1])], None),
    "graded": ([ours(0.1, **{Key.GRADED: True}), ours(1.0)], 0.1),
    "graded before much": (
        [ours(0.1, **{Key.GRADED: True}), *[OTHER] * 20, ("by agent", ours(1.0)[1])],
        0.1,
    ),
    "a note behind it": ([ours(0.2), (OURS, {"reward of whom": "none"})], 0.2),
    "none": ([OTHER] * 12, None),
    "nothing": ([], None),
}


async def fill(
    store: Any, given: Given, status: str = "succeeded", late: float | None = None
) -> str:
    started = await store.start_rollout("a task")
    ids = (started.rollout_id, started.attempt.attempt_id)

    def span(number: int, name: str, attributes: dict[str, Any]) -> agl.Span:
        made = agl.Span.from_attributes(name=name, attributes=attributes, span_id=f"{number:016x}")
        is_graded = Key.GRADED in attributes
        writer = "runner" if is_graded else "agent" if name == "by agent" else None
        about = {
            "rollout_id": ids[0],
            "attempt_id": ids[1],
            "writer": writer,
        }
        return made.model_copy(update=about)

    await store.add_many_spans([span(n, *one) for n, one in enumerate(given, 1)])
    await store.update_attempt(*ids, status=status)
    if late is not None:
        await store.add_many_spans([span(9999, *ours(late))])
    return ids[0]


@pytest.fixture(params=["file", "no file"])
def is_file(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the store is read by its file; else by its contract alone."""
    if request.param == "no file":
        monkeypatch.setattr(module, "file_of", lambda store: None)
    return request.param == "file"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("is_file")
async def test_the_final_reward_of_all_kinds_of_store_is_one(tmp_path: Path, case: str) -> None:
    given, expected = CASES[case]
    store = agl.SqliteLightningStore(tmp_path / "store.db")
    for late in (None, 1.0):
        rollout_id = await fill(store, given, late=late)
        assert find_final_reward(await store.query_spans(rollout_id)) == expected
        rollouts = await store.query_rollouts()
        assert (await final_rewards(store, rollouts))[rollout_id] == FinalReward(expected)
    await store.close()


@pytest.mark.parametrize("status", ["failed", "timeout"])
@pytest.mark.usefixtures("is_file")
async def test_the_reward_of_what_did_not_succeed_was_given_on_the_way(
    tmp_path: Path, status: str
) -> None:
    store = agl.SqliteLightningStore(tmp_path / "store.db")
    rollout_id = await fill(store, [ours(1.692)], status=status)
    queued = await store.enqueue_rollout("waits")
    found = await final_rewards(store, await store.query_rollouts())
    assert found == {rollout_id: FinalReward(None, 1.692), queued.rollout_id: FinalReward()}
    assert [str(one) for one in found.values()] == ["1.692 on the way", ""]
    assert reward_text(None, None, "none") == "none"
    await store.close()


def change_value(body: str) -> str:
    return body.replace("0.9", "0.8")


def cut_off(body: str) -> str:
    return body[:-20]


@pytest.mark.parametrize("change", [change_value, cut_off])
@pytest.mark.usefixtures("is_file")
async def test_a_damaged_last_span_lets_no_earlier_one_count(
    tmp_path: Path, change: Callable[[str], str]
) -> None:
    path = tmp_path / "store.db"
    store = agl.SqliteLightningStore(path)
    damaged, whole = await fill(store, [ours(0.2), ours(0.9)]), await fill(store, [ours(0.5)])
    await store.close()
    with closing(sqlite3.connect(path)) as connection:
        k, body = connection.execute(
            "SELECT k, body FROM span ORDER BY k LIMIT 1 OFFSET 1"
        ).fetchone()
        connection.execute("UPDATE span SET body = ? WHERE k = ?", (change(body), k))
        connection.commit()
    store = agl.SqliteLightningStore(path)
    found = await final_rewards(store, await store.query_rollouts())
    assert found[whole] == FinalReward(0.5)
    assert (found[damaged].reward, found[damaged].on_the_way) == (None, None)
    assert damaged in found[damaged].problem
    assert "is not what was stored" in found[damaged].problem
    await store.close()


async def test_the_highest_rewards_are_the_same_with_spans_of_other_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = agl.SqliteLightningStore(tmp_path / "store.db")
    await fill(store, [("judge", reward_attributes(0.9))])
    names = {
        await fill(store, [("judge", reward_attributes(value))]): value for value in (0.7, 0.8)
    }
    for n in range(120):
        await fill(store, [ours(0.1 + n / 1000), *([("judge", reward_attributes(-1))] * (n > 100))])
    found = await listed(store, Wanted(sort="reward", most=3))
    assert [one.rollout_id for one in found.rollouts][:2] == list(names)
    assert found.note == ""
    from agl_learning import listing

    monkeypatch.setattr(listing, "_FEW", 0)
    assert (
        "those in spans of other tools are in no index"
        in (await listed(store, Wanted(sort="reward", most=3))).note
    )
    await store.close()
