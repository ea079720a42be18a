"""What a person sees and clicks, in a real Chromium."""

import pytest

from ..stores import FAILURES, read  # noqa: TID252


def test_a_run_shows_whether_it_learns_and_what_was_trained(page, serve, trained):
    page.goto(f"{serve(trained / 'store.db')}/")
    page.get_by_role("link", name="2026").first.click()
    assert page.locator("h1").inner_text().startswith("Run 2")
    curve = page.locator("#curve svg:visible")
    said = curve.get_attribute("aria-label")
    assert said.startswith("Mean reward per step. held-out: from")
    assert "train: from" in said
    assert page.locator("#ledger tbody tr").count() == 7  # five steps, two evaluations
    assert (
        "it did exactly as well as what it was compared with"
        in page.locator("#ledger").inner_text()
    )
    assert page.locator("#causes").inner_text().endswith("No rollout has failed.")


def test_a_chart_tells_the_values_under_the_pointer_and_is_drawn_larger(page, serve, trained):
    page.goto(f"{serve(trained / 'store.db')}/s/run/")
    box = page.locator("#curve svg:visible").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] - 20, middle)
    tip = page.locator(".tip")
    held_out, train = page.locator("#curve svg:visible path.line").evaluate_all(
        "(all) => all.reverse().map((one) => one.dataset.at.split(' ').at(-1).slice(2))"
    )
    assert tip.inner_text() == f"step 5: train {train}, held-out {held_out}"
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, middle)
    page.mouse.up()
    page.wait_for_url("**?from=3&to=5")
    assert page.locator("#small path.line").first.get_attribute("data-at").startswith("3:")
    page.get_by_role("link", name="All steps").click()
    page.wait_for_url(lambda url: "from" not in url)
    page.get_by_label("to step").fill("2")
    page.get_by_role("button", name="Draw").click()
    assert "at step 2," in page.locator("#curve svg:visible").get_attribute("aria-label")


def test_from_the_run_to_the_words_of_a_rollout(page, serve, trained):
    page.goto(f"{serve(trained / 'store.db')}/s/run/")
    page.locator("#rollouts").get_by_role("link", name="succeeded").click()
    assert "22 rollouts match" in page.locator("#table").inner_text()
    page.locator("#table tbody a").first.click()
    assert page.locator(".role-user .words").first.inner_text() == "four"
    assert page.locator(".role-assistant .words").first.inner_text() != ""
    assert page.locator(".waterfall tbody tr").count() == 2
    page.go_back()
    assert page.locator("h1").inner_text() == "Rollouts"


def test_a_failure_shows_where_it_arose_and_its_traceback(page, serve, failures):
    page.goto(f"{serve(failures)}/s/failures/")
    causes = page.locator("#causes li")
    assert causes.count() == 9
    page.locator("#causes").get_by_role("link", name="KeyError").click()
    error = page.locator("#error")
    assert error.locator("h2").inner_text() == "Failed in the agent, /home/me/agent.py:41"
    assert "return answers[task]" in error.locator("pre").inner_text()
    assert page.locator(".waterfall tr.bad").count() == 1


@pytest.mark.parametrize("boundary", FAILURES)
def test_every_boundary_is_told_in_the_table(page, serve, failures, boundary):
    page.goto(f"{serve(failures)}/s/failures/rollouts?status=failed")
    assert page.locator("#table .tag", has_text=boundary).count() == 1


def test_filters_stand_in_the_address_and_pages_go_by_key(page, serve, failures):
    page.goto(f"{serve(failures)}/s/failures/rollouts?size=4")
    page.get_by_label("failed", exact=True).check()
    page.get_by_label("Mode").select_option("train")
    page.get_by_role("button", name="Show").click()
    assert "status=failed" in page.url
    assert "9 rollouts match" in page.locator("#table").inner_text()
    seen = []
    while True:
        seen += page.locator("#table tbody a").all_inner_texts()
        following = page.get_by_role("link", name="Next page")
        if not following.count():
            break
        following.click()
    assert len(seen) == len(set(seen)) == 9
    assert "after=ro-" in page.url
    assert "offset" not in page.url
    page.get_by_role("link", name="First page").click()
    assert page.locator("#table tbody a").first.inner_text() == seen[0]


def test_attempts_stand_beside_each_other(page, serve, failures):
    page.goto(f"{serve(failures)}/s/failures/rollouts?mode=val")
    page.locator("#table tbody a").click()
    assert page.locator(".role-assistant .words").inner_text() == "answer 1"
    head = page.locator("#attempts thead th").first.bounding_box()
    first = page.locator("#attempts tbody tr").first.locator("td").first.bounding_box()
    assert head["x"] == first["x"]
    assert head["y"] < first["y"]
    page.get_by_role("link", name="Attempt 1").click()
    assert page.locator(".role-assistant .words").inner_text() == "answer 0"
    assert "attempt=1" in page.url
    assert "first" in page.locator("#error").inner_text()


def test_colours_are_kept(page, serve, failures):
    page.goto(f"{serve(failures)}/s/failures/rollouts?mode=val")
    light = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.get_by_role("link", name="dark").click()
    assert page.url.endswith("?mode=val")
    dark = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.goto(page.url)
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == dark
    assert dark != light


def test_nobody_looks_without_the_key(page, serve, failures):
    address = serve(failures, is_open=False)
    bare = address.partition("/?")[0]
    assert read(f"{bare}/s/failures/rollouts")[0] == 401
    for _ in range(2):  # the second time with the cookie
        page.goto(address)
        assert "key" not in page.url
        assert "key=" not in page.content()
    page.goto(f"{bare}/s/failures/rollouts")
    assert page.locator("h1").inner_text() == "Rollouts"


def test_resources_runners_and_settings_are_a_click_away(page, serve, trained):
    page.goto(f"{serve(trained / 'store.db')}/s/run/")
    page.get_by_role("link", name="Resources").click()
    assert '"model": "policy"' in page.locator("main pre").first.inner_text()
    assert '"api_key": "***' in page.locator("main pre").first.inner_text()
    page.get_by_role("link", name="Runners").click()
    assert page.locator("#workers tbody tr").count() >= 1
    page.get_by_role("link", name="Settings").click()
    assert "algorithm.learning_rate" in page.locator("main").inner_text()
    assert "version of agl-core" in page.locator("main").inner_text()
