"""A page that is open follows its store: what it asks for, how often, and what its mark says."""

import asyncio
import itertools
import json
import time

import pytest

import agl
from agl_runs.records import RunStart
from agl_runs.store import begin_run, end_run
from agl_ui import prompt_tree
from agl_ui.pages import rollouts

from ..stores import apart, begin as begin_runs, call_span  # noqa: TID252


@pytest.fixture
def store(tmp_path):
    """A store with one rollout, in ``store.db``."""
    store = agl.SqliteLightningStore(tmp_path / "store.db", durability="process")
    apart(store.enqueue_rollout("the first task"))
    yield store
    apart(store.close())


@pytest.fixture
def opened(browser):
    """A page whose console may speak of answers that failed."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(20_000)
    yield context.new_page()
    context.close()


def wait_for_mark(page, state):
    page.locator(f"#live-mark[data-state={state}]").wait_for()


def test_the_mark_says_live_only_where_something_follows(browser, serve, store, tmp_path):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{serve(tmp_path / 'store.db')}/s/{tmp_path.name}/rollouts")
    assert page.locator("#live-mark").inner_text() == "as it was loaded"
    context.close()


def test_a_slow_answer_is_asked_for_less_often(page, serve, store, tmp_path, monkeypatch):
    ask, asked = rollouts.listed, []

    async def slow(*about):
        begin = time.monotonic()
        await asyncio.sleep(0.15)
        found = await ask(*about)
        asked.append((begin, time.monotonic()))
        return found

    monkeypatch.setattr(rollouts, "listed", slow)
    page.goto(f"{serve(tmp_path / 'store.db')}/s/{tmp_path.name}/rollouts")
    wait_for_mark(page, "live")
    while len(asked) < 4:
        apart(store.enqueue_rollout("another"))
        page.wait_for_timeout(100)
    for (begin, end), (following, _) in itertools.pairwise(asked[1:]):
        assert following - end >= 15 * (end - begin)


def test_nothing_is_asked_for_while_text_is_selected(page, serve, store, tmp_path):
    asked = []
    page.goto(f"{serve(tmp_path / 'store.db')}/s/{tmp_path.name}/rollouts")
    page.on("request", lambda request: asked.append(request.url))
    wait_for_mark(page, "live")
    page.evaluate("document.getSelection().selectAllChildren(document.querySelector('#table'))")
    apart(store.enqueue_rollout("the second task"))
    wait_for_mark(page, "held")
    with page.expect_request(lambda request: "/rollouts" in request.url):
        apart(store.enqueue_rollout("the third task"))
    assert page.locator("#table tbody tr").count() == 1
    assert sum("/rollouts" in url for url in asked) == 2  # once for each change
    page.evaluate("document.getSelection().removeAllRanges()")
    wait_for_mark(page, "live")
    assert page.locator("#table tbody tr").count() == 3


def test_what_the_keyboard_is_in_waits_until_it_leaves(page, serve, store, tmp_path):
    page.goto(f"{serve(tmp_path / 'store.db')}/s/{tmp_path.name}/rollouts")
    wait_for_mark(page, "live")
    page.keyboard.press("j")
    apart(store.enqueue_rollout("the second task"))
    wait_for_mark(page, "held")
    page.evaluate("document.activeElement.blur()")
    wait_for_mark(page, "live")
    assert page.locator("#table tbody tr").count() == 2


def test_what_failed_is_tried_again(opened, serve, store, tmp_path):
    opened.goto(f"{serve(tmp_path / 'store.db')}/s/{tmp_path.name}/rollouts")
    wait_for_mark(opened, "live")
    table, failed = "**/rollouts", []

    def refuse(route):
        failed.append(route)
        route.fulfill(status=503, body="no")

    opened.route(table, refuse)
    apart(store.enqueue_rollout("the second task"))
    wait_for_mark(opened, "waiting")
    assert "it answered 503" in opened.locator("#live-mark").get_attribute("title")
    opened.unroute(table)  # and nothing changes any more
    opened.locator("#table", has_text="the second task").wait_for()
    wait_for_mark(opened, "live")


def test_a_group_is_computed_again_once_and_not_at_each_change(page, serve, store, tmp_path):
    rollout = apart(store.start_rollout("a task", worker_id="w"))
    own = f"/s/{tmp_path.name}/rollouts/{rollout.rollout_id}"
    page.goto(f"{serve(tmp_path / 'store.db')}{own}?colour=mask&again=1")
    wait_for_mark(page, "live")
    with page.expect_response(lambda answer: f"{own}?" in answer.url) as told:
        apart(store.add_span(call_span(rollout, [], "the first answer")))
    assert "again=" not in told.value.url
    page.locator("#conversation", has_text="the first answer").wait_for()
    assert page.url.endswith(f"{own}?colour=mask")


def test_what_is_not_there_at_first_comes(page, serve, store, tmp_path):
    """Metrics, alerts and other runs of a run that has just begun."""
    start = RunStart(run_id="r", algorithm="grpo", folder=str(tmp_path))
    apart(begin_run(store, start))
    page.goto(f"{serve(tmp_path / 'store.db')}/s/{tmp_path.name}/run/r")
    wait_for_mark(page, "live")
    assert not page.locator("#small").is_visible()
    assert not page.locator("#others").is_visible()
    lines = [{"step": step, "reward/mean": 0.5, "entropy": 1.0 - step / 10} for step in range(3)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    page.locator("#small", has_text="Entropy").wait_for()
    apart(begin_run(store, RunStart(run_id="s", algorithm="grpo")))
    page.locator("#others", has_text="grpo").wait_for()
    apart(end_run(store, "r", 1, outcome="failed", error="no memory"))
    page.locator("#alerts", has_text="no memory").wait_for()


def test_a_prompt_run_comes_with_all_its_parts(page, serve, store, tmp_path, monkeypatch):
    monkeypatch.setattr(prompt_tree, "PAGE", 2)
    monkeypatch.setattr(prompt_tree, "MOST_AT_ONCE", 2)

    async def note(kind, name, answer):
        of = {"run": "r", "algorithm": "apo", "kind": kind, "name": name, "answer": answer}
        await store.put_documents([agl.Document(kind="prompts", key=f"{kind}/{name}", body=of)])

    async def begin():
        for number in range(5):
            await store.enqueue_rollout(f"task {number}")
        await store.add_resources({"p": agl.PromptTemplate(template="Hi {x}")})

    page.goto(f"{serve(tmp_path / 'store.db')}/s/{tmp_path.name}/prompts")
    wait_for_mark(page, "live")
    assert "No prompt run is recorded here." in page.locator("#prompts").inner_text()
    apart(begin())
    page.locator("#prompts", has_text="the rest follows").wait_for()
    # Without any further change of the store, all of it is read.
    page.locator("#prompts:not(:has-text('follows'))").wait_for()
    apart(note("start", "options", {"seed prompts": {"p": "Hi {x}"}}))
    page.locator("#decision", has_text="The search is not at its end").wait_for()
    assert page.locator("#tree tbody tr").count() == 1
    made = {"parent": "seed", "edits": {"p": "Hello {x}"}, "dropped": None, "copies": [3]}
    apart(note("candidate", "r1.1.1", made))
    page.locator("#tree", has_text="r1.1.1").wait_for()
    assert "copies from 1 train tasks" in page.locator("#tree").inner_text()


def test_a_runner_falls_silent_without_any_change(page, serve, store, tmp_path):
    page.clock.install()
    apart(store.update_worker("w"))
    page.goto(f"{serve(tmp_path / 'store.db')}/s/{tmp_path.name}/runners")
    wait_for_mark(page, "live")
    assert page.locator("#workers .badge").inner_text() != "silent"
    from agl_ui.pages import parts

    before = parts.SILENT_SECONDS
    parts.SILENT_SECONDS = 0.0
    try:
        page.clock.run_for(61_000)
        page.locator("#workers .badge", has_text="silent").wait_for()
    finally:
        parts.SILENT_SECONDS = before


def test_more_windows_than_a_browser_has_connections_open_and_follow(page, serve, store, tmp_path):
    address = f"{serve(tmp_path / 'store.db')}/s/{tmp_path.name}/rollouts"
    windows = [page, *(page.context.new_page() for _ in range(8))]
    for one in windows:
        one.goto(address)
        wait_for_mark(one, "live")
    apart(store.enqueue_rollout("the second task"))
    for one in windows:
        one.locator("#table", has_text="the second task").wait_for()
    for one in windows[:4]:  # those that have a stream
        one.close()
    windows[4].goto(address)
    wait_for_mark(windows[4], "live")


def test_the_list_of_runs_follows_and_keeps_what_is_chosen(page, serve, here):
    def begin_run_of(name):
        folder = here / "agl-runs" / name
        folder.mkdir(parents=True)
        begin_runs(folder / "store.db", name, folder=str(folder))

    begin_run_of("first")
    page.goto(serve())
    wait_for_mark(page, "live")
    page.get_by_label("Choose first").check()
    page.get_by_label("Choose first").blur()
    assert page.get_by_role("button", name="Lay chosen runs").is_disabled()
    begin_run_of("second")
    page.get_by_role("link", name="second").wait_for()
    assert page.get_by_label("Choose first").is_checked()
    page.get_by_label("Choose second").check()
    page.get_by_role("button", name="Lay chosen runs over each other").click()
    assert page.locator("th a").all_inner_texts() == ["second", "first"]
    page.goto("about:blank")  # before the process leaves the folder
