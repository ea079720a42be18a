"""Hostile text; what a screen reader meets."""

import pytest
from axe_playwright_python.sync_playwright import Axe


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
