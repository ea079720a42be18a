"""Hostile text runs nothing on any page, wherever it stands; and pages of others get nothing."""

import urllib.parse

import pytest

from ..stores import HOSTILE  # noqa: TID252

HIDDEN = set("\u202e\u202c\u2066\u2069\u200b\x1b\x00")
TABS = ("", "rollouts", "prompts", "resources", "runners", "settings")
ODD_QUERY = urllib.parse.quote('"><script>window.hurt=1</script>')


def check(page):
    """Nothing ran, nothing was made of it, and no character hides."""
    assert page.evaluate("window.hurt") is None
    made = "main script, main iframe, main object, main embed, main img, main base, main meta"
    assert page.locator(made).count() == 0
    inline = "Array.from(document.querySelectorAll('*')).filter(one => Array.from(one.attributes)"
    inline += ".some(each => each.name.startsWith('on') || each.name === 'style')).length"
    assert page.evaluate(inline) == 0
    addresses = page.evaluate("Array.from(document.links).map(one => one.protocol)")
    assert set(addresses) <= {"http:"}
    assert not HIDDEN & set(page.locator("body").inner_text())
    assert not HIDDEN & set(page.title())


@pytest.mark.parametrize("tab", TABS)
def test_no_page_of_a_store_runs_it(page, serve, hostile, tab):
    page.goto(f"{serve(hostile)}/s/hostile/{tab}")
    check(page)


def test_no_list_and_no_comparison_runs_it(page, serve, hostile):
    address = serve(hostile)
    for path in ("/", "/compare", "/s/hostile/run/hostile"):
        page.goto(address + path)
        check(page)


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_no_rollout_runs_it_with_its_spans_open(page, serve, hostile, number):
    page.goto(f"{serve(hostile)}/s/hostile/rollouts?mode=train&sort=oldest")
    page.locator("#table tbody a.id").nth(number).click()
    assert page.locator(".role-assistant .words").count() == 1
    assert page.locator("#error").count() == 1
    assert page.locator("main a[href^=javascript]").count() == 0
    check(page)
    for at in range(page.locator(".waterfall tbody a").count()):
        page.locator(".waterfall tbody a").nth(at).click()
        page.locator("#span").wait_for()
        check(page)


@pytest.mark.parametrize(
    "path",
    [
        f"/s/hostile/rollouts?status={ODD_QUERY}",
        f"/s/hostile/rollouts?id={ODD_QUERY}",
        f"/s/hostile/rollouts/{ODD_QUERY}",
        f"/s/hostile/run/{ODD_QUERY}",
        f"/s/{ODD_QUERY}/",
        f"/s/hostile/rollouts/ro-1?token={ODD_QUERY}",
    ],
)
def test_no_address_runs_what_stands_in_it(browser, serve, hostile, path):
    context = browser.new_context()
    page = context.new_page()  # that a page is not there is said on the console
    page.goto(serve(hostile) + path)
    check(page)
    context.close()


def test_a_store_in_a_folder_of_a_hostile_name(page, serve, hostile, tmp_path):
    folder = tmp_path / "<img src=x onerror=window.hurt=1>"
    folder.mkdir()
    file = folder / "store.db"
    file.write_bytes(hostile.read_bytes())
    page.goto(f"{serve(file)}/")
    check(page)
    page.get_by_role("link", name="hostile").first.click()
    check(page)
    page.get_by_role("link", name="Rollouts").first.click()
    assert page.locator("#table tbody tr").count() == len(HOSTILE) + 1
    check(page)


def test_a_page_of_another_origin_reads_nothing(browser, serve, hostile):
    address = serve(hostile)
    context = browser.new_context()
    page = context.new_page()
    page.route("http://evil.example/**", lambda route: route.fulfill(body="<h1>evil</h1>"))
    page.goto("http://evil.example/")
    tried = """async (address) => {
        const told = [];
        for (const mode of ['cors', 'no-cors']) {
            try {
                const answer = await fetch(address, { mode, credentials: 'include' });
                told.push((await answer.text()).includes('ro-'));
            } catch { told.push('refused'); }
        }
        const frame = document.createElement('iframe');
        frame.src = address;
        const loaded = new Promise((done) => { frame.onload = done; });
        document.body.append(frame);
        await loaded;
        try { told.push(frame.contentDocument.body.innerText.includes('ro-')); }
        catch { told.push('refused'); }
        return told;
    }"""
    told = page.evaluate(tried, f"{address}/s/hostile/rollouts")
    assert True not in told
    frame = next(one for one in page.frames if one is not page.main_frame)
    assert "ro-" not in frame.locator("body").inner_text()
    context.close()
