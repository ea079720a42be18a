"""Make the pictures of docs/howto/look-at-a-run.md: ``python -m docs.pictures RUN``.

RUN is the folder of a run of ``examples/quickstart``, some steps long:

    python examples/quickstart/quickstart.py --steps 8 --out RUN

``--all`` writes every page at three widths, light and dark, whole, to be looked at.
"""

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright
from tests.plugins.ui.stores import apart, fill_with_failures

from agl_ui.places import Places, file_place
from agl_ui.serving import Server

PICTURES = Path(__file__).parent / "howto/pictures"
WIDTHS, SCHEMES = (1280, 800, 400), ("light", "dark")
KEPT = {
    "run": ("run", 1280, "light"),
    "rollouts": ("rollouts", 1280, "light"),
    "why": ("why", 1280, "light"),
    "why-phone": ("why", 400, "dark"),
    "failure": ("failure", 800, "dark"),
    "attempts": ("attempts", 1280, "light"),
}
"""Picture -> page, width, colours."""


def pages(page: Page, run: str, failures: str) -> Iterator[tuple[str, str]]:
    """Name and address of every page."""
    yield "runs", f"{run}/"
    key = page.evaluate("document.querySelector('main a[href*=\"/s/\"]').pathname.split('/')[2]")
    base = f"{run}/s/{key}"
    for name in ("rollouts", "prompts", "resources", "runners", "settings"):
        yield name, f"{base}/{name}"
    yield "run", f"{base}/"
    page.goto(f"{base}/rollouts?mode=train&step=4")
    page.locator("#table tbody a.id").first.click()
    yield "rollout", page.url
    page.locator(".tokens summary").first.click()
    page.locator(".ids a").first.click()
    yield "why", page.url.replace("#", "&again=1#")
    other = f"{failures}/s/failures"
    yield "failed-run", f"{other}/"
    page.goto(f"{other}/rollouts?status=failed")
    page.locator("#table tbody tr", has_text="KeyError").locator("a.id").first.click()
    yield "failure", page.url
    page.goto(f"{other}/rollouts?mode=val")
    page.locator("#table tbody a.id").first.click()
    yield "attempts", page.url
    page.goto(f"{other}/rollouts?mode=test")
    page.locator("#table tbody a.id").first.click()
    yield "waiting", page.url
    yield "nothing", f"{other}/rollouts?status=cancelled"
    yield "not-there", f"{other}/rollouts/ro-none"


def take(browser: Browser, address: str, width: int, scheme: str, file: Path, whole: bool) -> None:
    """One picture."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(address)
    page.screenshot(path=file, full_page=whole, type="jpeg", quality=70)
    page.close()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--all", type=Path)
    given = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as p:
        failures = Path(folder) / "failures.db"
        apart(fill_with_failures(failures))
        places = [Places(file_place(file)) for file in (given.run / "store.db", failures)]
        servers = [Server(each, is_open=True) for each in places]
        addresses = [server.start().rstrip("/") for server in servers]
        path = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = p.chromium.launch(executable_path=path, args=["--no-sandbox"])
        first = browser.new_page()
        first.goto(f"{addresses[0]}/")
        found = dict(pages(first, *addresses))
        for name, (of, width, scheme) in KEPT.items():
            take(browser, found[of], width, scheme, PICTURES / f"{name}.jpg", False)
        for name, address in found.items() if given.all else ():
            given.all.mkdir(exist_ok=True, parents=True)
            for width in WIDTHS:
                for scheme in SCHEMES:
                    file = given.all / f"{name}-{width}-{scheme}.jpg"
                    take(browser, address, width, scheme, file, True)
        browser.close()
        for server in servers:
            server.stop()
    print(f"{sum(one.stat().st_size for one in PICTURES.iterdir()):,} bytes in {PICTURES}")


if __name__ == "__main__":
    main()
