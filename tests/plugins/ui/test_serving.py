"""What the server answers, without a browser."""

import json
import re
import sqlite3
import time
import urllib.error
import urllib.parse
import urllib.request
from types import SimpleNamespace

import pytest

import agl
from agl.types import Failure, RolloutConfig
from agl_runs.records import RunStart
from agl_runs.store import begin_run

from .stores import apart, reward_span

RETRY = RolloutConfig(max_attempts=2, retry_condition=["failed"])


def first_of(file):
    """The id of a rollout with two spans and one call."""
    with sqlite3.connect(file) as store:
        return store.execute("SELECT rollout_id FROM rollout ORDER BY n LIMIT 1").fetchone()[0]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/s/none/", 404),
        ("/s/failures/rollouts/ro-none", 404),
        ("/s/failures/run/none", 404),
        ("/s/failures/rollouts?status=dead", 400),
        ("/s/failures/rollouts?size=x", 400),
        ("/s/failures/rollouts?sort=x", 400),
        ("/compare?run=nope", 404),
        ("/compare?runs=failures", 400),
        ("/?x=1", 400),
        ("/s/failures/prompts?run=x", 400),
        ("/s/failures/rollouts/FIRST?call=zz", 404),
        ("/s/failures/rollouts/FIRST?turn=999", 404),
        ("/s/failures/rollouts/FIRST?spans=99999", 404),
        ("/s/failures/rollouts/FIRST?again=0", 400),
        ("/s/failures/runners?from=9", 400),
        ("/s/failures/run/failures?from=9&to=3", 400),
        ("/s/failures/resources?from=x", 400),
    ],
)
def test_what_is_not_there_is_said(serve, failures, path, status):
    with pytest.raises(urllib.error.HTTPError) as told:
        urllib.request.urlopen(serve(failures) + path.replace("FIRST", first_of(failures)))
    assert told.value.code == status
    assert '<p class="lead">' in told.value.read().decode()


def test_a_mistyped_filter_is_led_to_the_one_that_was_meant(serve, failures):
    with pytest.raises(urllib.error.HTTPError) as told:
        urllib.request.urlopen(f"{serve(failures)}/s/failures/rollouts?statuss=1")
    text = told.value.read().decode()
    assert "Did you mean &#39;status&#39;?" in text
    assert '<a href="/s/failures/rollouts">' in text


def test_only_a_store_of_prompts_has_their_tab(serve, failures, prompted):
    for file, has in ((failures, False), (prompted / "store.db", True)):
        key = "failures" if file == failures else prompted.name
        with urllib.request.urlopen(f"{serve(file)}/s/{key}/rollouts") as answer:
            assert (f'href="/s/{key}/prompts"' in answer.read().decode()) == has


def test_every_answer_has_a_strict_policy(serve, failures):
    address = serve(failures)
    for path in ("/", "/s/failures/rollouts", "/static/live.js", "/theme/dark", "/events"):
        with urllib.request.urlopen(address + path) as answer:
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Host": "evil.example"}, 421), ({"Origin": "https://evil.example"}, 403)],
)
def test_pages_of_other_sites_get_nothing(serve, failures, headers, status):
    request = urllib.request.Request(f"{serve(failures)}/s/failures/rollouts", headers=headers)
    with pytest.raises(urllib.error.HTTPError) as told:
        urllib.request.urlopen(request)
    assert told.value.code == status
    assert b"ro-" not in told.value.read()


def test_a_run_says_what_its_steps_took_and_its_budget(tmp_path, serve):
    lines = [
        {"step": 0, "val/calls/total": 4, "val/tokens/given": 40, "val/tokens/sampled": 4},
        {"step": 1, "calls/total": 6, "tokens/given": 1000, "tokens/sampled": 6},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    path = tmp_path / "store.db"
    config = {"gateway": {"run_budget": {"tokens": 2000}}}

    async def begin():
        store = agl.SqliteLightningStore(path)
        start = RunStart(run_id="r", algorithm="grpo", config=config, folder=str(tmp_path))
        await begin_run(store, start)
        await store.close()

    apart(begin())
    with urllib.request.urlopen(f"{serve(path)}/s/{tmp_path.name}/run/r") as answer:
        page = answer.read().decode()
    assert "<dt>Calls in steps</dt><dd>10</dd>" in page
    assert "<dt>Tokens in steps</dt><dd>1\u2009050</dd>" in page
    assert "<dt>Budget of each start</dt><dd>2\u2009000 tokens</dd>" in page


def test_what_is_of_all_runs_of_a_store_does_not_look_like_one_runs(tmp_path, serve):
    path = tmp_path / "store.db"

    async def begin():
        store = agl.SqliteLightningStore(path)
        for run in ("first", "second"):
            await begin_run(store, RunStart(run_id=run, algorithm="grpo"))
        await store.close()

    apart(begin())
    with urllib.request.urlopen(f"{serve(path)}/s/{tmp_path.name}/run/first") as answer:
        page = answer.read().decode()
    assert "<h2>Rollouts, all 2 runs of the store</h2>" in page
    assert "<h2>Why rollouts failed, all 2 runs of the store</h2>" in page


@pytest.mark.parametrize(("later", "said"), [(0.0, "1 unknown"), (120.0, "1 silent")])
def test_a_runner_that_gives_no_sign_is_not_called_idle(tmp_path, serve, monkeypatch, later, said):
    path = tmp_path / "failures.db"

    async def begin():
        store = agl.SqliteLightningStore(path)
        await store.update_worker("w", heartbeat_stats={})
        await store.close()

    apart(begin())
    now = time.time() + later
    monkeypatch.setattr("agl_ui.pages.parts.time", SimpleNamespace(time=lambda: now))
    with urllib.request.urlopen(f"{serve(path)}/s/failures/runners") as answer:
        assert f"1 of 1, those heard of last first; {said}." in answer.read().decode()


def test_runners_snapshots_and_settings_beyond_one_page_are_reached(tmp_path, serve):
    path = tmp_path / "many.db"

    async def begin():
        store = agl.SqliteLightningStore(path, durability="process")
        for number in range(70):
            await store.update_worker(f"w-{number:02}")
            await store.add_resources({"p": agl.PromptTemplate(template=f"t-{number:02}")})
        for number in range(9):
            await begin_run(store, RunStart(run_id=f"run-{number}", algorithm="grpo"))
        await store.close()

    apart(begin())
    address = serve(path)
    for tab, names, said in (
        ("runners", [f"w-{n:02}" for n in range(70)], "1 to 50 of 70 runners"),
        ("resources", [f"t-{n:02}" for n in range(70)], "1 to 50 of 70 snapshots"),
        ("settings", [f"run-{n}" for n in range(9)], "1 to 5 of 9 runs"),
    ):
        page, seen = f"/s/many/{tab}", ""
        while page:
            with urllib.request.urlopen(address + page) as answer:
                text = answer.read().decode()
            assert said in text or "from=" in page
            seen += text
            found = re.search(r'rel="next" href="([^"]*)"', text)
            page = f"/s/many/{tab}{found[1]}" if found else ""
        assert [name for name in names if name not in seen] == []
    runs = "&".join(f"run=many/run-{number}" for number in range(9))
    with urllib.request.urlopen(f"{address}/compare?{runs}") as answer:
        assert "left out: run-0." in answer.read().decode()


def test_what_a_page_does_not_show_is_counted(tmp_path, serve):
    path = tmp_path / "many.db"

    async def fail():
        store = agl.SqliteLightningStore(path, durability="process")
        await begin_run(store, RunStart(run_id="r", algorithm="grpo"))
        for number in range(23):
            rollout = await store.start_rollout(number)
            error = Failure(boundary="agent", type=f"Error{number}", message="m")
            await store.update_attempt(rollout.rollout_id, "latest", status="failed", error=error)
        rollout = await store.enqueue_rollout("t", config=RETRY)
        for _ in range(2):
            again = await store.dequeue_rollout("w")
            spans = [reward_span(again, float(value)) for value in range(9)]
            await store.add_many_spans(spans)
            await store.update_attempt(rollout.rollout_id, "latest", status="failed", error=error)
        await store.close()
        return rollout.rollout_id

    rollout_id = apart(fail())
    address = f"{serve(path)}/s/many"
    with urllib.request.urlopen(f"{address}/run/r") as answer:
        assert "3 more kinds of failure" in answer.read().decode()
    with urllib.request.urlopen(f"{address}/rollouts/{rollout_id}") as answer:
        assert answer.read().decode().count(" and 3 more</td>") == 2


@pytest.mark.parametrize("others", ['x={"a": 1}; ', "x=a b; ", "x=1, 2; ", "foo; ", "u@v=1; ", ""])
def test_cookies_of_other_programs_lock_nobody_out(serve, failures, others):
    address, _, key = serve(failures, is_open=False).partition("/?key=")
    port = address.rpartition(":")[2]
    request = urllib.request.Request(f"{address}/s/failures/rollouts")
    request.add_header("Cookie", f"{others}agl-ui-key-{port}={key}")
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("body", ['{"do": []}', '{"do": {}}', "[" * 200_000, "[]", "x"])
def test_an_act_that_is_none_is_refused(serve, failures, body):
    address = serve(failures)
    request = urllib.request.Request(
        f"{address}/s/failures/rollouts/ro-1/act",
        body.encode(),
        {"Origin": address, "Content-Type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError) as told:
        urllib.request.urlopen(request)
    assert told.value.code == 400
    assert "expected one of cancel, requeue" in told.value.read().decode()


def test_colours_that_there_are_not_are_refused(serve, failures):
    with pytest.raises(urllib.error.HTTPError) as told:
        urllib.request.urlopen(f"{serve(failures)}/theme/neon")
    assert told.value.code == 404
    told.value.close()


@pytest.mark.parametrize("back", ["https://evil.example/", "//evil.example", "/\\evil.example"])
def test_choosing_a_colour_leads_nowhere_else(serve, failures, back):
    request = f"{serve(failures)}/theme/dark?back={urllib.parse.quote(back)}"
    with urllib.request.urlopen(request) as answer:
        assert answer.url.startswith("http://127.0.0.1:")


def test_a_file_is_read_and_not_changed(serve, tmp_path):
    file = tmp_path / "store.db"

    async def make():
        store = agl.SqliteLightningStore(file)
        await store.enqueue_rollout("task")
        await store.close()

    apart(make())
    before = file.read_bytes()
    with urllib.request.urlopen(f"{serve(file)}/s/{tmp_path.name}/rollouts") as answer:
        assert b"1 rollout matches" in answer.read()
    assert file.read_bytes() == before


def test_a_run_under_way_is_read_beside_its_process(serve, tmp_path):
    file = tmp_path / "store.db"
    store = agl.SqliteLightningStore(file, durability="process")
    apart(store.enqueue_rollout("one"))
    address = f"{serve(file)}/s/{tmp_path.name}/rollouts"
    for number, text in enumerate(("two", "three"), 1):
        with urllib.request.urlopen(address) as answer:
            assert f"{number} rollout{'s' if number > 1 else ''} match" in answer.read().decode()
        apart(store.enqueue_rollout(text))
    apart(store.close())
