"""Make the pictures of docs/howto/look-at-a-run.md: ``python -m docs.pictures RUN OTHER``.

Both are folders of runs of ``examples/quickstart``, some steps long; the first one is shown, and
both are laid over each other:

    python examples/quickstart/quickstart.py --steps 8 --out RUN

``--all DIR`` writes every page at three widths, light and dark, whole, to be looked at.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright
from tests.plugins.ui import prompt_run
from tests.plugins.ui.stores import apart, fill_with_failures

from agl_ui.data_sources import DataSources
from agl_ui.serving import Server

PICTURES = Path(__file__).parent / "howto/pictures"
WIDTHS, SCHEMES = (1280, 800, 400), ("light", "dark")
KEPT = {
    "run": ("run", 1280, "light"),
    "compare": ("compare", 1280, "dark"),
    "rollouts": ("rollouts", 1280, "light"),
    "task": ("task", 1280, "dark"),
    "prompts": ("prompts", 1280, "light"),
    "runners": ("runners", 800, "light"),
    "failure": ("failure", 800, "dark"),
    "attempts": ("attempts", 1280, "light"),
    "why": ("why", 1280, "light"),
    "why-phone": ("why", 400, "dark"),
}
"""Picture -> page, width, colours."""
HEIGHT, LOW = 900, {"runners": 300}
"""Of a picture."""


def pages(page: Page, address: str, runs: list[str]) -> Iterator[tuple[str, str]]:
    """Name and address of every page."""
    yield "runs", address
    page.goto(address)
    chosen = page.locator("input[name=run]").evaluate_all("(all) => all.map((one) => one.value)")
    query = "&".join(f"run={one}" for one in chosen if one.partition("/")[0] in runs)
    yield "compare", f"{address}compare?{query}"
    base = f"{address}s/{runs[0]}"
    for name in ("rollouts", "resources", "runners", "settings"):
        yield name, f"{base}/{name}"
    yield "run", f"{base}/"
    yield "no-prompts", f"{base}/prompts"
    yield "prompts", f"{address}s/apo/prompts"
    page.goto(f"{base}/rollouts?mode=train&step=4")
    page.locator("#table tbody a.id").first.click()
    yield "rollout", page.url
    task = page.get_by_role("link", name="all its rollouts side by side").get_attribute("href")
    yield "task", f"{address.rstrip('/')}{task}"
    page.locator(".tokens summary").first.click()
    page.locator(".ids a").first.click()
    yield "why", page.url.replace("#", "&again=1#")
    other = f"{address}s/failures"
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
    """One picture, whole or of what is seen first."""
    size = {"width": width, "height": LOW.get(file.stem, HEIGHT)}
    page = browser.new_page(viewport=size, color_scheme=scheme)
    page.goto(address)
    if page.locator("#live-mark").count():
        page.locator("#live-mark[data-state=live]").wait_for()
    page.screenshot(path=file, full_page=whole, type="jpeg", quality=70)
    page.close()


def lay_out(home: Path, runs: list[Path]) -> None:
    """The runs, one of apo, and one of failures, as ``agl ui`` finds them."""
    for name in ("failures", "apo"):
        (home / "agl-runs" / name).mkdir(parents=True)
    for run in runs:
        (home / "agl-runs" / run.name).symlink_to(run.absolute())
    apart(fill_with_failures(home / "agl-runs/failures/store.db"))
    of_apo = [sys.executable, prompt_run.__file__, "apo", home / "agl-runs/apo"]
    subprocess.run(of_apo, check=True, capture_output=True)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--all", type=Path)
    given = parser.parse_args()
    everything = given.all and given.all.absolute()
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as p:
        lay_out(Path(folder), given.runs)
        os.chdir(folder)
        sources = DataSources()
        server = Server(sources, is_open=True)
        address = server.start()
        path = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = p.chromium.launch(executable_path=path, args=["--no-sandbox"])
        found = dict(pages(browser.new_page(), address, [run.name for run in given.runs]))
        for name, (of, width, scheme) in KEPT.items():
            take(browser, found[of], width, scheme, PICTURES / f"{name}.jpg", False)
        for name, one in found.items() if everything else ():
            everything.mkdir(exist_ok=True, parents=True)
            for width in WIDTHS:
                for scheme in SCHEMES:
                    file = everything / f"{name}-{width}-{scheme}.jpg"
                    take(browser, one, width, scheme, file, True)
        browser.close()
        server.stop()
        apart(sources.close())
        os.chdir(PICTURES)
    print(f"{sum(one.stat().st_size for one in PICTURES.glob('*.jpg')):,} bytes in {PICTURES}")


if __name__ == "__main__":
    main()
