"""The page of one rollout: windows of spans, colours of tokens, why, and what a keyboard does."""

import base64
import json
import re
import urllib.request

import pytest
from tests.interpreter import AGL, python

import agl

from ..grouped import fill_with_group  # noqa: TID252
from ..long_trace import fill_with_long_trace  # noqa: TID252
from ..stores import apart, call_span, filled, png_of  # noqa: TID252

NUM_SPANS = 3_000


@pytest.fixture(scope="session")
def long(tmp_path_factory):
    file = tmp_path_factory.mktemp("long") / "long.db"
    return file, fill_with_long_trace(file, NUM_SPANS)


def test_only_the_window_that_is_seen_is_loaded(page, serve, long):
    file, rollout_id = long
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{serve(file)}/s/long/rollouts/{rollout_id}")
    box = page.locator("#waterfall")
    assert page.locator("#waterfall tbody a").count() == 100
    assert "3\u2009000 spans" in page.locator("#spans").inner_text()
    assert len(page.content()) < 400_000
    box.evaluate("box => { box.scrollTop = box.scrollHeight / 2 }")
    page.locator("#waterfall", has_text="tool.search 1505").wait_for()
    windows = [url for url in asked if "/spans?" in url]
    assert 1 <= len(windows) <= 3
    assert "spans=" in page.url
    assert page.locator("#waterfall tbody a").count() == 100
    # The address is that of what is seen.
    page.reload()
    page.locator("#waterfall", has_text="tool.search 1505").wait_for()
    page.locator("#waterfall").get_by_role("link", name="tool.search 1510", exact=True).click()
    assert "tool.input" in page.locator("#span").inner_text()
    page.go_back()
    assert page.locator("#span").count() == 0


def test_windows_are_links_where_nothing_runs(browser, serve, long):
    file, rollout_id = long
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{serve(file)}/s/long/rollouts/{rollout_id}")
    page.get_by_role("link", name="Next spans").click()
    assert "tool.search 101" in page.locator("#waterfall").inner_text()
    page.get_by_role("link", name="Spans before").click()
    assert "tool.search 1\n" in page.locator("#waterfall").inner_text().replace("\t", "\n")
    context.close()


def test_a_long_trace_says_what_is_left_out(page, serve, long):
    file, rollout_id = long
    page.goto(f"{serve(file)}/s/long/rollouts/{rollout_id}")
    said = page.locator("#conversation").inner_text()
    shown = "Shown are calls that a gateway recorded, 30 in all"
    assert f"This trace has 3\u2009000 spans. {shown}" in said


def first_of_step(page, address):
    page.goto(f"{address}/s/run/rollouts?step=4&mode=train")
    page.locator("#table tbody a").first.click()
    return page.url


def test_tokens_are_coloured_by_what_is_chosen(page, serve, trained):
    first_of_step(page, serve(trained / "store.db"))
    page.locator(".tokens summary").click()
    assert page.locator(".ids a").first.get_attribute("class").startswith("p")
    page.get_by_role("link", name="mask").click()
    assert "colour=mask" in page.url
    page.locator(".tokens summary").click()
    assert page.locator(".ids a.learned").count() == 1
    assert page.locator(".ids[role=group] span.given").count() == 4
    page.get_by_role("link", name="advantage").click()
    page.locator(".tokens summary").click()
    assert page.locator(".ids a").first.get_attribute("class")[:2] in ("up", "do")
    page.go_back()
    assert "colour=mask" in page.url


def test_the_page_and_agl_explain_say_the_same(page, serve, trained):
    url = first_of_step(page, serve(trained / "store.db"))
    rollout_id = url.partition("?")[0].rpartition("/")[2]
    page.locator(".tokens summary").click()
    page.locator(".ids a").first.click()
    assert "token=0" in page.url
    said = page.locator("#why").inner_text()
    assert re.search("final gave [0-9.]+: the last reward of the attempt is", said)
    assert "step 4 of grpo" in said
    assert "agl explain ro-" in said
    page.get_by_role("button", name="Compute it again").click()
    assert "again=1" in page.url
    command = ["explain", rollout_id, "--row", "0", "--token", "4", "--again", "--json"]
    where = ["--path", str(trained / "store.db")]
    done = python(*AGL, *command, *where)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["why"]
    address, _, query = page.url.partition("?")
    with urllib.request.urlopen(f"{address}/why.json?{query.partition('#')[0]}") as answer:
        assert json.load(answer) == told
    rows = page.locator(".terms tbody tr")
    assert rows.count() == len(told["terms"])
    for at, term in enumerate(told["terms"]):
        cells = rows.nth(at).locator("th, td")
        assert cells.nth(0).inner_text() == term["name"]
        shown, told_as = cells.nth(1).inner_text().replace("\u2212", "-"), term["value"]
        if term["factor"] is not None:
            assert shown.startswith("× ")
            shown, told_as = shown[2:], term["factor"]
        assert (shown, told_as) == ("not kept", None) or float(shown) == pytest.approx(
            told_as, rel=1e-3, abs=1e-9
        )
        assert cells.nth(3).inner_text() == term["because"]
    members = page.locator(".members tbody tr")
    assert members.count() == len(told["group"]["members"]) == 2
    assert ["this one" in one for one in members.all_inner_texts()] == [True, False]
    assert "the same" in page.locator(".again").inner_text()
    assert (
        "grad_norm" in page.locator("#why").inner_text(timeout=5_000)
        or page.locator("#why dl.evidence", has_text="grad_norm").count()
    )


def test_a_number_of_the_whole_answer_has_a_badge_and_a_changed_one_is_red(page, serve, tmp_path):
    file = tmp_path / "group.db"
    rollout_id = fill_with_group(file)
    import sqlite3

    with sqlite3.connect(file) as store:
        old, new = '"agentlightning.reward.0.value":0.0', '"agentlightning.reward.0.value":0.5'
        store.execute("UPDATE span SET body = replace(body, ?, ?)", [old, new])
    page.goto(f"{serve(file)}/s/group/rollouts/{rollout_id}")
    page.locator(".tokens summary").click()
    page.locator(".ids a").nth(1).click()
    why = page.locator("#why")
    assert "shared by all 3 tokens of the answer" in why.inner_text()
    assert why.get_by_role("link", name="Token before").count() == 1
    page.keyboard.press("Tab")  # the title has the focus; the first link comes next
    assert page.evaluate("document.activeElement.textContent") == "Token before"
    why.get_by_role("link", name="Next token").click()
    assert why.get_by_role("link", name="Next token").count() == 0
    why.get_by_role("button", name="Compute it again").click()
    red = page.locator(".again tr.differs")
    assert red.locator("th").all_inner_texts() == ["mean of the group", "advantage"]
    colour = red.first.locator("td").first.evaluate("one => getComputedStyle(one).color")
    assert colour == page.locator(".again h4").evaluate("one => getComputedStyle(one).color")
    assert red.first.locator("td").all_inner_texts()[:2] == ["0.5", "0.75"]


A_PNG = png_of(2, b"\x00\xff\x00\x00\x00\xff\x00" * 2)


def test_images_of_messages_are_shown_and_nothing_of_elsewhere(page, serve, tmp_path):
    file = tmp_path / "images.db"
    png = f"data:image/png;base64,{base64.b64encode(A_PNG).decode()}"
    svg = base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>").decode()
    urls = [png, f"data:image/svg+xml;base64,{svg}", "https://evil.example/a.png"]

    async def fill(store):
        rollout = await store.start_rollout("t", mode="train", worker_id="w")
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        content = [{"type": "text", "text": "look"}, *parts]
        await store.add_span(call_span(rollout, [{"role": "user", "content": content}], "a cat"))
        return rollout.rollout_id

    rollout_id = filled(file, fill)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{serve(file)}/s/images/rollouts/{rollout_id}")
    image = page.locator(".said img")
    assert image.count() == 1
    assert image.evaluate("one => one.decode().then(() => one.naturalWidth)") == 2
    said = page.locator(".role-user").inner_text()
    assert "An image of kind 'image/svg+xml' is not shown" in said
    assert "An image of elsewhere is not loaded: https://evil.example/a.png" in said
    assert not any("evil.example" in url for url in asked)
    answer = page.request.get(page.locator(".said a").first.evaluate("one => one.href"))
    assert answer.headers["content-type"] == "image/png"
    assert answer.body() == A_PNG


def test_a_rollout_that_changes_is_told_and_others_are_not(page, serve, tmp_path):
    file = tmp_path / "store.db"
    store = agl.SqliteLightningStore(file, durability="process")

    async def begin(name):
        return await store.start_rollout(name, mode="train", worker_id="w")

    rollout, other = apart(begin("one")), apart(begin("another"))
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{serve(file)}/s/{tmp_path.name}/rollouts/{rollout.rollout_id}")
    page.locator("#live-mark[data-state=live]").wait_for()
    own = f"/rollouts/{rollout.rollout_id}"
    user = [{"role": "user", "content": "q"}]
    apart(store.add_span(call_span(other, user, "of another rollout")))
    apart(store.add_span(call_span(rollout, user, "the first answer")))
    page.locator(".role-assistant", has_text="the first answer").wait_for()
    # One look at the page, and one for its one change: what another rollout does is none of it.
    assert sum(url.endswith(own) for url in asked) == 2
    apart(store.close())


def test_pictures_of_a_page_fit_at_80_percent_and_on_a_phone(page, serve, failures):
    page.goto(f"{serve(failures)}/s/failures/rollouts?mode=val")
    page.locator("#table tbody a").click()
    page.locator(".waterfall a").first.click()
    for width in (1600, 1280, 360):  # 1600 is 1280 at 80 % zoom
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
