"""Why a token was trained; hostile text; what a screen reader meets."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe


def test_a_click_on_a_token_answers_why(page, serve, trained):
    page.goto(f"{serve(trained / 'store.db')}/s/run/rollouts?step=4&mode=train")
    page.locator("#table tbody a").first.click()
    page.locator(".tokens summary").click()
    page.locator(".ids a").first.click()
    assert "token=0" in page.url
    why = page.locator("#why")
    said = why.inner_text()
    assert re.search("final gave [0-9.]+: the last reward of the attempt is", said)
    assert "step 4 of grpo" in said
    assert "agl explain ro-" in said
    members = why.locator(".members tbody tr")
    assert members.count() == 2  # the other one of its group, too
    assert members.filter(has_text="this one").count() == 1


def test_a_line_of_ten_million_letters_is_cut_and_can_be_had_whole(page, serve, hostile):
    page.goto(f"{serve(hostile)}/s/hostile/rollouts?mode=val")
    page.locator("#table tbody a.id").click()
    assert len(page.content()) < 60_000
    link = page.get_by_role("link", name="the whole text")
    answer = page.request.get(page.evaluate("(a) => a.href", link.element_handle()))
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert len(answer.body()) == 10_000_008


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 800, 400])
def test_pages_fit_and_can_be_read_by_all(page, serve, failures, scheme, width):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    address = serve(failures)
    page.goto(f"{address}/s/failures/rollouts?mode=train")
    one = page.locator("#table tbody a").first.get_attribute("href")
    tabs = [f"/s/failures/{tab}" for tab in ("run/failures", "rollouts", "resources", "runners")]
    for path in ("/", *tabs, "/s/failures/settings", one, "/compare"):
        page.goto(address + path)
        assert_fits_and_can_be_read(page, width)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_what_a_run_left_fits_and_can_be_read_by_all(page, serve, trained, scheme, width):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    address = serve(trained / "store.db")
    page.goto(f"{address}/s/run/")
    assert page.locator("#curve svg:visible").count() == 1
    assert_fits_and_can_be_read(page, width)
    page.goto(f"{address}/s/run/rollouts?step=4&mode=train")
    page.locator("#table tbody a").first.click()
    task = page.get_by_role("link", name="all its rollouts side by side").get_attribute("href")
    for colour in ("log-probability", "mask", "advantage"):
        page.get_by_role("link", name=colour, exact=True).click()
        page.locator(".tokens summary").first.click()
        assert_fits_and_can_be_read(page, width)
    page.locator(".ids a").first.click()
    page.get_by_role("button", name="Compute it again").click()
    assert_fits_and_can_be_read(page, width)
    page.goto(address + task)
    assert_fits_and_can_be_read(page, width)


def assert_fits_and_can_be_read(page, width):
    assert page.evaluate("document.documentElement.scrollWidth") <= width, page.url
    bad = [
        (each["id"], each["nodes"][0]["html"][:200])
        for each in Axe().run(page).response["violations"]
        if each["impact"] in ("serious", "critical")
    ]
    assert bad == [], page.url
