"""Each way in which the page is started, and what a click may change."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import agl
from agl_http.tokens import issue_token

from ..stores import apart, read  # noqa: TID252

AGENT = """
import asyncio
from pathlib import Path

import agl


@agl.rollout
async def waits(task: str) -> float:
    while not (Path(__file__).parent / "go").exists():
        await asyncio.sleep(0.05)
    return 1.0
"""
AGL = str(Path(sys.executable).with_name("agl"))
TOKEN = "an-admins-token-for-this-test"


def address_in(process, beginning):
    """The address that a process prints on its standard error."""
    for line in process.stderr:
        if beginning in line:
            return line[line.index("http") :].split()[0]
    raise AssertionError("it ended without an address")


def test_a_run_shows_itself_while_it_lasts_and_can_be_changed(page, tmp_path):
    (tmp_path / "waits.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text("\n".join(json.dumps(f"task {n}") for n in range(3)))
    text = "agent: waits:waits\ntrain: tasks.jsonl\nalgorithm: baseline\nrunners: 1\n"
    (tmp_path / "agl.yaml").write_text(text)
    command = [AGL, "run", "--ui", "agl.yaml"]
    environment = {**os.environ, "AGL_SERVER_PORT": "0"}
    run = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    page.context.set_default_timeout(120_000)  # the run has the machine, too
    try:
        address = address_in(run, "agl ui: http")
        page.goto(address)
        page.locator("table a.id").first.click()
        page.locator("#rollouts .counts", has_text="running 1").wait_for()
        page.get_by_role("link", name="Rollouts").click()
        row = page.locator("#table tr", has_text="queuing").first
        row.wait_for()
        name = row.locator("a").inner_text()
        row.locator("a").click()
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Really cancel?").click()
        page.locator("#status .badge", has_text="cancelled").wait_for()
        assert page.locator("#acts").count() == 0
        page.go_back()
        page.locator("#table tr", has_text=name).locator(".badge", has_text="cancelled").wait_for()
    finally:
        page.goto("about:blank")  # before the server is gone, which it would say
        (tmp_path / "go").touch()
        run.communicate()
    assert run.returncode == 0
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address)


def test_a_store_server_has_the_page_for_its_readers(page, tmp_path):
    command = [AGL, "store", "--port", "0", "--backend", "memory"]
    environment = {**os.environ, "AGL_SERVER_TOKEN": TOKEN}
    server = subprocess.Popen(
        command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    try:
        bare = address_in(server, "agl store: http")
        address = bare.replace("://", f"://agl:{TOKEN}@")

        async def fill():
            client = agl.LightningStoreClient(address)
            await client.enqueue_rollout("waits here")
            token = await issue_token(client, "reader")
            await client.close()
            return token

        reader = apart(fill())
        for path in ("ui", "ui/s/store/rollouts"):
            assert read(f"{bare}/{path}")[0] == 401
        for token, buttons in ((reader, 0), (TOKEN, 1)):
            context = page.context.browser.new_context(
                http_credentials={"username": "agl", "password": token}
            )
            other = context.new_page()
            other.goto(f"{bare}/ui")
            assert other.locator("#table .badge").inner_text() == "queuing"
            other.locator("#table a.id").click()
            assert other.get_by_role("button", name="Cancel").count() == buttons
            context.close()
        headers = {"Authorization": f"Bearer {reader}", "Content-Type": "application/json"}
        act = f"{bare}/ui/s/store/rollouts/ro-1/act"
        assert read(act, b'{"do": "cancel"}', **headers)[0] == 403
    finally:
        server.terminate()
        server.communicate()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/json"}, 403),  # no origin
        ({"Content-Type": "application/json", "Origin": "https://evil.example"}, 403),
        ({"Content-Type": "text/plain", "Origin": "own"}, 415),
        ({"Content-Type": "application/json", "Origin": "own"}, 403),  # opened to be read
    ],
)
def test_nobody_else_changes_anything(serve, failures, headers, status):
    address = serve(failures)
    headers = {name: value.replace("own", address) for name, value in headers.items()}
    act = f"{address}/s/failures/rollouts/ro-1/act"
    assert read(act, b'{"do": "cancel"}', **headers)[0] == status


def test_a_copy_needs_no_server(page, trained, tmp_path):
    copy = tmp_path / "copy"
    command = [AGL, "ui", str(trained), "--export", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.split() == [str(copy / "index.html")]
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 2
    assert "there are files in it already" in again.stderr
    page.goto((copy / "index.html").as_uri())
    assert page.locator("h1").inner_text().startswith("Run 2")
    assert page.locator("#curve svg path.line").count() >= 1
    assert page.evaluate("getComputedStyle(document.querySelector('.card')).borderRadius") == "8px"
    page.locator("#rollouts").get_by_role("link", name="succeeded").click()
    page.locator("#table tbody a").first.click()
    assert page.locator(".role-assistant .words").count() == 1
    page.go_back()
    assert page.locator("h1").inner_text() == "Rollouts"
    for tab in ("Run", "Resources", "Runners", "Settings"):
        # Not the link in an empty page's text.
        tabs = page.get_by_role("navigation", name="Store")
        tabs.get_by_role("link", name=tab, exact=True).click()
        assert page.url.startswith(copy.as_uri())
        assert page.locator("script, form, button").count() == 0
    for file in copy.glob("*.html"):
        page.goto(file.as_uri())
        for link in page.evaluate("[...document.links].map((one) => one.href)"):
            assert link.startswith(copy.as_uri()), file
            assert (copy / link.rpartition("/")[2].partition("#")[0]).is_file(), link
