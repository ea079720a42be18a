"""A store of 0.3 behind its own server; AGL_PEER_PYTHON as for ``tests/compat``."""

import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

import agl

from ..stores import apart, call_span, reward_span  # noqa: TID252

PEER = os.environ.get("AGL_PEER_PYTHON", "")
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        not PEER, reason="needs AGL_PEER_PYTHON, a Python with agentlightning 0.3.0"
    ),
]


@pytest.fixture
def theirs():
    """The address of a server of 0.3's, with a rollout that ended and one that waits."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(PEER).with_name("agl")), "store", "--host", "127.0.0.1"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no look for prices on the network
    server = subprocess.Popen([*command, "--port", str(port)], env=environment)
    address = f"http://127.0.0.1:{port}"

    async def fill():
        store = agl.LightningStoreClient(address)
        await store.add_resources({"prompt": agl.PromptTemplate(template="Hi {name}")})
        rollout = await store.start_rollout({"task": 1}, mode="train")
        said = call_span(rollout, [{"role": "user", "content": "hello"}], "hi there")
        await store.add_many_spans([said, reward_span(rollout, 0.5)])
        await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        await store.enqueue_rollout("waits")
        await store.close()

    try:
        while server.poll() is None:
            with socket.socket() as asking:
                if asking.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        apart(fill())
        yield address
    finally:
        server.terminate()
        server.wait()


def test_its_rollouts_and_spans_are_shown(page, theirs):
    from agl_ui.places import Places, server_place
    from agl_ui.serving import Server

    places = Places(server_place(theirs, theirs))
    server = Server(places, is_open=True)
    try:
        page.goto(server.start())
        page.locator("main a", has_text=theirs).click()
        assert "2 rollouts match" in page.locator("#table").inner_text()
        page.locator("#table tr", has_text="succeeded").locator("a").click()
        assert page.locator(".role-assistant .words").inner_text() == "hi there"
        assert page.locator("#facts strong").inner_text() == "0.5"
        page.get_by_role("link", name="all its rollouts side by side").click()
        assert page.locator("h1").inner_text() == "Task"
        assert "hi there" in page.locator("main").inner_text()
        for tab in ("Run", "Prompts", "Resources", "Runners", "Settings"):
            # Not the link in an empty page's text.
            tabs = page.get_by_role("navigation", name="Store")
            tabs.get_by_role("link", name=tab, exact=True).click()
            assert page.locator("h1").inner_text() in (tab, "Rollouts")
    finally:
        server.stop()
        apart(places.close())
