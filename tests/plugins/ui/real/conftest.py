"""A real Chromium."""

import shutil

import pytest
from playwright.sync_api import sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="session")
def browser():
    """Chromium of the system, without a window."""
    assert CHROMIUM, "there is no chromium; Debian's package is called chromium"
    with sync_playwright() as p:
        found = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser, serve):  # which ends after the page, or that would say that nobody answers
    """A page of a fresh profile; whatever it says on its console fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(20_000)
    opened = context.new_page()
    said = []
    opened.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("dialog", lambda dialog: (said.append("a dialog opened"), dialog.dismiss()))
    yield opened
    context.close()
    assert said == []
