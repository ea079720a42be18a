"""All rollouts of one task side by side, and where they part."""

import pytest

from agl.types import RolloutConfig

from ..stores import call_span, filled, reward_span  # noqa: TID252

QUESTION = {"role": "user", "content": "How many legs has a spider?"}
ANSWERS = {"A spider has eight legs.": 1.0, "A spider has six legs.": 0.0}


@pytest.fixture
def group(tmp_path):
    """A store of two steps of one task, and a rollout of another task."""

    async def fill(store):
        for step in (1, 2):
            for answer, reward in ANSWERS.items():
                rollout = await store.start_rollout(
                    {"legs": 8}, mode="train", metadata={"step": step}, config=RolloutConfig()
                )
                told = answer if step == 1 else "Eight."
                value = reward if step == 1 else 1.0
                spans = [call_span(rollout, [QUESTION], told), reward_span(rollout, value)]
                await store.add_many_spans(spans)
                await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        await store.start_rollout({"legs": 2}, mode="train", metadata={"step": 1})

    filled(tmp_path / "store.db", fill)
    return tmp_path / "store.db"


def test_rollouts_of_a_task_stand_beside_each_other_from_where_they_part(page, serve, group):
    page.goto(f"{serve(group)}/s/{group.parent.name}/rollouts?sort=oldest")
    page.locator("#table tbody a.id").first.click()
    page.get_by_role("link", name="all its rollouts side by side").click()
    side = page.locator("#side")
    assert side.locator("h2").inner_text() == "Step 1, the highest reward first"
    assert side.locator(".reward").all_inner_texts() == ["reward 1", "reward 0"]
    assert side.locator("summary").inner_text() == "1 message the same in all"
    assert side.locator("article .words").all_inner_texts() == list(ANSWERS)
    assert side.locator("article .same").all_inner_texts() == ["A spider has ", "A spider has "]
    rows = page.locator("#steps tbody tr")
    expected = [["2", "2", "1", "1", "1", "0"], ["1", "2", "0.5", "0", "1", "0.7071"]]
    assert [row.locator("td").all_inner_texts()[:6] for row in rows.all()] == expected
    rows.first.locator("a").click()
    assert "step=2" in page.url
    assert side.locator("summary").inner_text() == "2 messages the same in all"
    page.go_back()
    assert side.locator("h2").inner_text() == "Step 1, the highest reward first"
