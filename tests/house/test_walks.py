"""The pages that follow a rollout and a reward name files in the order in which a run meets them.

The run is one rollout: the half of strategy ``cs`` that has the algorithm and the server, and a
runner as its process has it, in a thread.
"""

import asyncio
import contextlib
import re
import sys
import threading
from pathlib import Path
from types import FrameType

import pytest
from tests.waiting import free_port

import agl
import agl_http
import agl_runs
import agl_server
import agl_sqlite
from agl.runner.heartbeat import Heartbeat
from agl_sqlite import SqliteLightningStore

REPOSITORY = Path(__file__).parents[2]
PACKAGES = {  # installed, or in this checkout
    f"{Path(package.__file__).parent}/": "" if package is agl else f"{package.__name__}/"
    for package in (agl, agl_http, agl_runs, agl_server, agl_sqlite)
}
LEFT_OUT = re.compile(
    r"(types|utils)/|(__init__|env|errors|semconv)\.py|agl_server/answers|agl_http/metrics|plugins/registry"
    r"|store/(packed_span|queries|waiting|watchdog)"
    r"|agl_sqlite/(database\.|file|lookups|row_buffer|rows|sql_lookups|write_behind)"
)
"""What others call everywhere, and what serves the store and not the one that is followed."""
NOT_MET = ("__init__", "SpanBuffer._tick", "SpanBuffer._write_soon")  # what timers call


def rows(page: str, *tables: int) -> list[str]:
    parts = (REPOSITORY / "docs" / "explanation" / page).read_text().split("\n## ")
    return [file for n in tables for file in re.findall(r"^\| `([^`]+)` \|", parts[n], re.M)]


class Walk:
    """Files of which something is called after ``begin`` and before ``end``, by first call.

    What is made is not yet called, what a coroutine resumes was called before, and a writer that
    was given nothing yet ends what was before.
    """

    def __init__(self, begin: str, end: str, threads: str, *, with_callers: bool = False) -> None:
        self.begin, self.end, self.threads = begin, end, re.compile(threads)
        self.with_callers = with_callers
        self.files: dict[str, None] = {}
        self.begun, self.ended = False, threading.Event()

    def __call__(self, frame: FrameType) -> None:
        name = frame.f_code.co_qualname
        is_resumed = frame.f_lineno != frame.f_code.co_firstlineno
        thread = threading.current_thread().name
        handed_over = "agl_sqlite/database_store.py" in self.files
        is_before = thread == "agl-store-writer" and not handed_over
        if name.endswith(NOT_MET) or is_resumed or is_before or self.ended.is_set():
            return
        if name == self.begin and not self.begun:
            self.begun = True
            self._note(frame, self.with_callers)
        elif name == self.end and self.begun:
            self.ended.set()
        elif self.begun and self.threads.match(thread):
            self._note(frame)

    def _note(self, frame: FrameType, with_callers: bool = False) -> None:
        if with_callers and frame.f_back is not None:
            self._note(frame.f_back, True)
        file = frame.f_code.co_filename
        for package, name in PACKAGES.items():
            if file.startswith(package) and not LEFT_OUT.match(
                file := f"{name}{file.removeprefix(package)}"
            ):
                self.files[file] = None


@agl.rollout
def agent(task: str, llm: agl.LLM) -> float:
    agl.emit_reward(0.5)
    assert REWARD.ended.wait(50)  # what comes after is no part of the walk
    return 0.5


OF_RUNNER = "runner|agl-(?!store-reader)"
ENQUEUE = Walk(
    "Baseline.run", "_WaitingStore.wait_for_rollouts", "Main|agl-store-writer", with_callers=True
)
CLAIM = Walk("Claims.wait", "agent", OF_RUNNER, with_callers=True)
REWARD = Walk("emit_reward", "SqliteTables.insert_spans", OF_RUNNER)


def look(frame: FrameType, event: str, argument: object) -> None:
    if event == "call":
        for walk in (ENQUEUE, CLAIM, REWARD):
            walk(frame)


TOKEN = "s3cret-long-enough"


async def run_one(port: int) -> None:
    client = agl.LightningStoreClient(f"http://127.0.0.1:{port}", token=TOKEN)
    await client.query_documents("ledger", limit=1)  # it asks once what the server can do
    runner = agl.LitAgentRunner(agl.OtelTracer(), max_rollouts=1)
    with runner.run_context(agent=agent, store=client):
        await runner.iter()


@pytest.mark.timeout(120)  # a runner that fails leaves the algorithm waiting
def test_files_are_met_in_the_order_of_the_pages(tmp_path, monkeypatch):
    # What a runner does by the clock is on nobody's way.
    monkeypatch.setattr(Heartbeat, "beating", lambda _: contextlib.nullcontext())
    monkeypatch.setattr("agl.runner.litagent.LOOK_SECONDS", 60)
    port = free_port()

    def runner() -> None:
        if ENQUEUE.ended.wait(50):
            asyncio.run(run_one(port))

    thread = threading.Thread(target=runner, name="runner", daemon=True)
    threading.setprofile(look)
    sys.setprofile(look)
    try:
        thread.start()
        strategy = {"type": "cs", "role": "algorithm", "server_port": port, "token": TOKEN}
        resources = {"llm": agl.LLM(endpoint="http://localhost/v1", model="m")}
        store = SqliteLightningStore(str(tmp_path / "store.db"))
        parts = {"strategy": strategy, "store": store, "initial_resources": resources}
        agl.Trainer(algorithm=agl.Baseline(), **parts).fit(agent, ["task"])
        thread.join(50)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert rows("follow-a-rollout.md", 1, 2) == list(ENQUEUE.files | CLAIM.files)
    assert rows("follow-a-reward.md", 1) == list(REWARD.files)


@pytest.mark.parametrize("page", ["follow-a-rollout.md", "follow-a-reward.md"])
def test_no_file_is_met_twice_on_the_way_down(page):
    files = rows(page, 1, 2)
    assert len(files) == len(set(files))
    for file in files:
        place = f"{file.partition('/')[0].replace('_', '-')}/src/{file}"
        assert any(
            (REPOSITORY / folder / file).exists() or (REPOSITORY / folder / place).exists()
            for folder in (".", "core/src/agl", "libs", "plugins")
        ), file
