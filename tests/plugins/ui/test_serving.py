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

from .stores import apart, begin, filled, page_of, read, reward_span

RETRY = RolloutConfig(max_attempts=2, retry_condition=["failed"])


def first_of(file):
    """The id of a rollout with two spans and one call."""
    with sqlite3.connect(file) as store:
        return store.execute("SELECT rollout_id FROM rollout ORDER BY n LIMIT 1").fetchone()[0]


ROLLOUTS = "/s/failures/rollouts"
NOT_THERE = {
    404: ["/s/none/", f"{ROLLOUTS}/ro-none", "/s/failures/run/none", "/compare?run=nope"]
    + [f"{ROLLOUTS}/FIRST?{query}" for query in ("call=zz", "turn=999", "spans=99999")],
    400: ["/compare?runs=failures", "/?x=1", "/s/failures/prompts?run=x"]
    + [f"{ROLLOUTS}{query}" for query in ("?status=dead", "?size=x", "?sort=x", "/FIRST?again=0")]
    + [f"/s/failures/{one}" for one in ("runners?from=9", "resources?from=x")]
    + ["/s/failures/run/failures?from=9&to=3"],
}


@pytest.mark.parametrize(
    ("path", "status"), [(path, status) for status in NOT_THERE for path in NOT_THERE[status]]
)
def test_what_is_not_there_is_said(serve, failures, path, status):
    got, text = read(serve(failures) + path.replace("FIRST", first_of(failures)))
    assert got == status
    assert '<p class="lead">' in text


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("sort=ended&id=ro-1", "no index has both"),
        ("sort=lowest&status=failed", "failed have no reward"),
        ("below=much", "expected a number"),
        ("above=nan", "expected a number"),
        ("after=nope", "the store has no such rollout"),
        ("step=1&step=2", "step is given 2 times"),
    ],
)
def test_what_cannot_be_asked_of_rollouts_is_refused_by_name(serve, failures, query, said):
    status, text = read(f"{serve(failures)}{ROLLOUTS}?{query}")
    assert status == 400
    assert said in text


def test_a_mistyped_filter_is_led_to_the_one_that_was_meant(serve, failures):
    _, text = read(f"{serve(failures)}/s/failures/rollouts?statuss=1")
    assert "Did you mean &#39;status&#39;?" in text
    assert '<a href="/s/failures/rollouts">' in text


def test_only_a_store_of_prompts_has_their_tab(serve, failures, prompted):
    of_prompts = (prompted / "store.db", prompted.name, True)
    for file, key, has in ((failures, "failures", False), of_prompts):
        assert (f'href="/s/{key}/prompts"' in page_of(f"{serve(file)}/s/{key}/rollouts")) == has


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
    got, text = read(f"{serve(failures)}/s/failures/rollouts", **headers)
    assert (got, "ro-" in text) == (status, False)


def test_a_run_says_what_its_steps_took_and_its_budget(tmp_path, serve):
    lines = [
        {"step": 0, "val/calls/total": 4, "val/tokens/given": 40, "val/tokens/sampled": 4},
        {"step": 1, "calls/total": 6, "tokens/given": 1000, "tokens/sampled": 6},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    path = tmp_path / "store.db"
    budget = {"gateway": {"run_budget": {"tokens": 2000}}}
    begin(path, "r", config=budget, folder=str(tmp_path))
    page = page_of(f"{serve(path)}/s/{tmp_path.name}/run/r")
    assert "<dt>Calls in steps</dt><dd>10</dd>" in page
    assert "<dt>Tokens in steps</dt><dd>1 050</dd>" in page
    assert "<dt>Budget of each start</dt><dd>2 000 tokens</dd>" in page


def test_what_is_of_all_runs_of_a_store_does_not_look_like_one_runs(tmp_path, serve):
    path = tmp_path / "store.db"
    begin(path, "first", "second")
    page = page_of(f"{serve(path)}/s/{tmp_path.name}/run/first")
    assert "<h2>Rollouts, all 2 runs of the store</h2>" in page
    assert "<h2>Why rollouts failed, all 2 runs of the store</h2>" in page


@pytest.mark.parametrize(("later", "said"), [(0.0, "1 unknown"), (120.0, "1 silent")])
def test_a_runner_that_gives_no_sign_is_not_called_idle(tmp_path, serve, monkeypatch, later, said):
    path = tmp_path / "failures.db"
    filled(path, lambda store: store.update_worker("w", heartbeat_stats={}))
    now = time.time() + later
    monkeypatch.setattr("agl_ui.pages.parts.time", SimpleNamespace(time=lambda: now))
    text = page_of(f"{serve(path)}/s/failures/runners")
    assert f"1 of 1, those heard of last first; {said}." in text


def test_runners_snapshots_and_settings_beyond_one_page_are_reached(tmp_path, serve):
    path = tmp_path / "many.db"

    async def fill(store):
        for number in range(70):
            await store.update_worker(f"w-{number:02}")
            await store.add_resources({"p": agl.PromptTemplate(template=f"t-{number:02}")})

    filled(path, fill)
    begin(path, *(f"run-{number}" for number in range(9)))
    address = serve(path)
    for tab, names, said in (
        ("runners", [f"w-{n:02}" for n in range(70)], "1 to 50 of 70 runners"),
        ("resources", [f"t-{n:02}" for n in range(70)], "1 to 50 of 70 snapshots"),
        ("settings", [f"run-{n}" for n in range(9)], "1 to 5 of 9 runs"),
    ):
        page, seen = f"/s/many/{tab}", ""
        while page:
            text = page_of(address + page)
            assert said in text or "from=" in page
            seen += text
            found = re.search(r'rel="next" href="([^"]*)"', text)
            page = f"/s/many/{tab}{found[1]}" if found else ""
        assert [name for name in names if name not in seen] == []
    runs = "&".join(f"run=many/run-{number}" for number in range(9))
    assert "left out: run-0." in page_of(f"{address}/compare?{runs}")


def test_what_a_page_does_not_show_is_counted(tmp_path, serve):
    path = tmp_path / "many.db"
    begin(path, "r")

    async def fail(store):
        for number in range(23):
            rollout = await store.start_rollout(number)
            error = Failure(boundary="agent", type=f"Error{number}", message="m")
            await store.update_attempt(rollout.rollout_id, "latest", status="failed", error=error)
        rollout = await store.enqueue_rollout("t", config=RETRY)
        for _ in range(2):
            again = await store.dequeue_rollout("w")
            await store.add_many_spans([reward_span(again, float(value)) for value in range(9)])
            await store.update_attempt(rollout.rollout_id, "latest", status="failed", error=error)
        return rollout.rollout_id

    rollout_id = filled(path, fail)
    address = f"{serve(path)}/s/many"
    assert "3 more kinds of failure" in page_of(f"{address}/run/r")
    assert page_of(f"{address}/rollouts/{rollout_id}").count(" and 3 more</td>") == 2


@pytest.mark.parametrize("others", ['x={"a": 1}; ', "x=a b; ", "x=1, 2; ", "foo; ", "u@v=1; ", ""])
def test_cookies_of_other_programs_lock_nobody_out(serve, failures, others):
    address, _, key = serve(failures, is_open=False).partition("/?key=")
    cookie = f"{others}agl-ui-key-{address.rpartition(':')[2]}={key}"
    assert read(f"{address}/s/failures/rollouts", Cookie=cookie)[0] == 200


@pytest.mark.parametrize("body", ['{"do": []}', '{"do": {}}', "[" * 200_000, "[]", "x"])
def test_an_act_that_is_none_is_refused(serve, failures, body):
    address = serve(failures)
    url, headers = f"{address}/s/failures/rollouts/ro-1/act", {"Content-Type": "application/json"}
    status, text = read(url, body.encode(), Origin=address, **headers)
    assert status == 400
    assert "expected one of cancel, requeue" in text


def test_colours_that_there_are_not_are_refused(serve, failures):
    assert read(f"{serve(failures)}/theme/neon")[0] == 404


@pytest.mark.parametrize("back", ["https://evil.example/", "//evil.example", "/\\evil.example"])
def test_choosing_a_colour_leads_nowhere_else(serve, failures, back):
    request = f"{serve(failures)}/theme/dark?back={urllib.parse.quote(back)}"
    with urllib.request.urlopen(request) as answer:
        assert answer.url.startswith("http://127.0.0.1:")


def test_a_file_is_read_and_not_changed(serve, tmp_path):
    file = tmp_path / "store.db"
    filled(file, lambda store: store.enqueue_rollout("task"))
    before = file.read_bytes()
    assert "1 rollout matches" in page_of(f"{serve(file)}/s/{tmp_path.name}/rollouts")
    assert file.read_bytes() == before


def test_a_run_under_way_is_read_beside_its_process(serve, tmp_path):
    file = tmp_path / "store.db"
    store = agl.SqliteLightningStore(file, durability="process")
    apart(store.enqueue_rollout("one"))
    address = f"{serve(file)}/s/{tmp_path.name}/rollouts"
    for said, text in (("1 rollout match", "two"), ("2 rollouts match", "three")):
        assert said in page_of(address)
        apart(store.enqueue_rollout(text))
    apart(store.close())
