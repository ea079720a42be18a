"""Every key that the page explains does what it says."""


def test_keys(page, serve, failures):
    page.goto(f"{serve(failures)}/s/failures/rollouts?size=3")
    links = page.locator("#table tbody a.id")
    names = links.all_inner_texts()

    def focused():
        return page.evaluate("document.activeElement.innerText")

    page.keyboard.press("j")
    assert focused() == names[0]
    page.keyboard.press("j")
    assert focused() == names[1]
    page.keyboard.press("k")
    assert focused() == names[0]
    page.keyboard.press("n")
    page.wait_for_url("**after=**")
    assert links.first.inner_text() not in names
    page.keyboard.press("f")
    page.wait_for_function("!location.search.includes('after')")
    assert links.all_inner_texts() == names
    page.keyboard.press("/")
    field = page.evaluate("document.activeElement.name")
    assert field
    page.keyboard.press("n")  # a letter, while one types
    assert "after" not in page.url
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.name") != field
    page.keyboard.press("?")
    assert page.locator("#keys").get_attribute("open") is not None
    page.keyboard.press("?")
    assert page.locator("#keys").get_attribute("open") is None
    page.locator("nav.tabs a").nth(3).wait_for()
    page.keyboard.press("4")
    page.wait_for_url("**/runners")
    page.keyboard.press("r")
    page.wait_for_function("location.pathname === '/'")
