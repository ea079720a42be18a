"""The web page in a real Chromium: a long trace, an hour of watching, and what watching costs.

    python benchmarks/ui.py trace --spans 50000 --rounds 9
    python benchmarks/ui.py pages --store store.db --rollout ro-...
    python benchmarks/ui.py memory --changes 3600
    python benchmarks/ui.py cost --seconds 20 --rounds 3

``trace`` opens the page of a rollout of so many spans, and then scrolls through them: milliseconds
from the click to the first picture and to the end of loading, and from a scroll to the new window.
``pages`` opens pages of a large store that is there already, the run's page in a new window and the
others from the table, as a person does who filters it: to the first picture and to the end of
loading, and the seconds of CPU that the server took for it, which other work on the machine changes
less. ``memory`` is an hour of watching at one change a second, run faster: the page's clock is
moved on, and the page follows every ten changes, more often than it does by itself where an answer
takes a third of a second; bytes and nodes are those after a garbage collection.
``cost`` is a run, a process of its own that writes rollouts with their accounts and metrics as fast
as it can, in turn without and with its page open in a browser, which shares the machine's cores:
rollouts per second by the wall, what a turn with the page has less than the one before it, and the
share of a core that the page's server took.

A server is a process of its own, ``agl ui``, but for ``memory``. Medians, and the load of the
machine beside them.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import Page, sync_playwright
from tests.plugins.ui.long_trace import fill_with_long_trace
from tests.plugins.ui.stores import apart, call_span, reward_span

import agl
from agl_learning.reports.run_metrics import RunMetrics
from agl_records.ledger.documents import put_parts
from agl_records.types import Exclusion, LedgerItem, LedgerPart
from agl_runs import store as run_store
from agl_runs.records import RunStart

RUN, OF_A_STEP = "watched", 64
TOGETHER = 10
"""Changes that the page sees at once while its memory is measured."""
USER = [{"role": "user", "content": "what is it?"}]


@contextlib.contextmanager
def served(file: Path) -> Generator[tuple[str, int]]:
    """``agl ui`` over a store; its address, and its process."""
    command = [str(Path(sys.executable).with_name("agl")), "ui", str(file), "--open"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://\S+", line)
        assert found, line
        yield found[0].rstrip("/"), process.pid
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def browser() -> Generator[Page]:
    """A page of the system's Chromium."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as p:
        found = p.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = found.new_page(viewport={"width": 1280, "height": 800}, bypass_csp=True)
        page.set_default_timeout(120_000)
        yield page
        found.close()


def measure_trace(folder: Path, num_spans: int, rounds: int) -> None:
    """See the module."""
    file = folder / "long.db"
    rollout_id = fill_with_long_trace(file, num_spans)
    paints, loads, windows, sizes = [], [], [], []
    with served(file) as (address, _), browser() as page:
        for at in range(rounds + 1):
            page.goto("about:blank")
            page.goto(f"{address}/s/long/rollouts/{rollout_id}")
            page.wait_for_function("performance.getEntriesByType('navigation')[0].loadEventEnd > 0")
            page.wait_for_function("performance.getEntriesByType('paint').length > 1")
            entry = page.evaluate("performance.getEntriesByType('navigation')[0].toJSON()")
            paint = page.evaluate("performance.getEntriesByType('paint')[1].startTime")
            shown = num_spans * (at + 1) // (rounds + 2)
            begin = time.perf_counter()
            page.locator("#waterfall").evaluate(
                "(box, share) => { box.scrollTop = box.scrollHeight * share }", shown / num_spans
            )
            low, high = max(0, shown - 60), shown + 60
            page.wait_for_function(
                f"(() => {{ const at = Number(document.querySelector('#waterfall tbody')"
                f".dataset.first); return at > {low} - 40 && at < {high}; }})()"
            )
            windows.append(1e3 * (time.perf_counter() - begin))
            paints.append(paint)
            loads.append(entry["loadEventEnd"])
            sizes.append(entry["decodedBodySize"])
    say("first picture, ms", paints[1:])
    say("loaded, ms", loads[1:])
    say("a window after a scroll, ms", windows[1:])
    print(f"{'page, bytes':<34}{statistics.median(sizes):>12,.0f}")


def measure_pages(file: Path, rollout_id: str, rounds: int) -> None:
    """See the module."""
    paths = ["/", "/rollouts", "/rollouts?status=failed", "/rollouts?status=failed&mode=train"]
    paths += [f"/rollouts?id={rollout_id[:7]}", f"/rollouts?after={rollout_id}&sort=oldest"]
    paths += ["/rollouts?sort=ended&status=failed&mode=val", "/rollouts?sort=status&mode=train"]
    paths += ["/rollouts?step=100&sort=ended", "/rollouts?id=ro-7"]
    paths += ["/rollouts?step=100&sort=reward", f"/rollouts/{rollout_id}"]
    with served(file) as (address, pid), browser() as page:
        page.goto(f"{address}/")
        store = page.locator("a[href*='/s/']").first.get_attribute("href").split("/")[2]
        for path in paths:
            paints, loads, seconds = [], [], []
            for _ in range(rounds + 1):
                is_first = path == "/"
                page.goto("about:blank" if is_first else f"{address}/s/{store}/rollouts")
                before = cpu_of(pid)
                with page.expect_navigation(wait_until="load", url=f"**{path.partition('?')[0]}*"):
                    page.evaluate("path => { location.href = path }", f"{address}/s/{store}{path}")
                seconds.append(cpu_of(pid) - before)
                page.wait_for_function("performance.getEntriesByType('paint').length > 1")
                entry = page.evaluate("performance.getEntriesByType('navigation')[0].toJSON()")
                paints.append(page.evaluate("performance.getEntriesByType('paint')[1].startTime"))
                loads.append(entry["loadEventEnd"])
            print(path)
            say("  first picture, ms", paints[1:])
            say("  loaded, ms", loads[1:])
            say("  CPU of the server, s", seconds[1:])


def measure_memory(folder: Path, changes: int) -> None:
    """See the module."""
    from agl_ui import live
    from agl_ui.data_sources import DataSources, file_source
    from agl_ui.serving import Server

    live.LOOK_SECONDS, live.LOOK_TIMES = 0.005, 1
    file = folder / "store.db"
    store = agl.SqliteLightningStore(file, durability="process")
    rollout = apart(store.start_rollout("watched", mode="train", worker_id="w"))
    sources = DataSources(file_source(file))
    server = Server(sources, is_open=True)
    address = server.start().rstrip("/")
    with browser() as page:
        page.clock.install()
        counts = "window.fresh = 0; document.addEventListener('agl:fresh', () => { fresh += 1; })"
        page.add_init_script(counts)
        under_way: set[Any] = set()
        page.on("request", lambda one: one.resource_type == "fetch" and under_way.add(one))
        for end in ("requestfinished", "requestfailed"):
            page.on(end, lambda one: under_way.discard(one))
        page.goto(f"{address}/s/{folder.name}/rollouts/{rollout.rollout_id}")
        session = page.context.new_cdp_session(page)
        for number in range(changes // TOGETHER + 1):
            if number % max(1, changes // TOGETHER // 10) == 0:
                session.send("HeapProfiler.collectGarbage")
                session.send("Performance.enable")
                given = session.send("Performance.getMetrics")["metrics"]
                found = {one["name"]: one["value"] for one in given}
                print(
                    f"after {number * TOGETHER:>6} changes "
                    f"{found['JSHeapUsedSize'] / 1e6:>8.2f} MB of heap "
                    f"{found['Nodes']:>8.0f} nodes",
                    flush=True,
                )
            answers = [f"answer {number * TOGETHER + n}" for n in range(TOGETHER)]
            before = page.evaluate("fresh")
            apart(store.add_many_spans([call_span(rollout, USER, one) for one in answers]))
            # The clock stands still until the page has what was new, so that no answer seems slow.
            settle(page, under_way, before)
            page.clock.run_for(1_000 * TOGETHER)
            settle(page, under_way)
    server.stop()
    apart(sources.close())
    apart(store.close())


def settle(page: Page, under_way: set[Any], before: int = -1) -> None:
    """Wait until a page has followed more often than ``before``, and asks for nothing."""
    deadline = time.monotonic() + 60
    while page.evaluate("fresh") == before or under_way:
        if time.monotonic() > deadline:
            urls = [one.url for one in under_way]
            raise TimeoutError(f"the page has followed {before} times, and waits for {urls}")
        page.wait_for_timeout(20)


def measure_cost(folder: Path, seconds: float, rounds: int) -> None:
    """See the module."""
    file = folder / "store.db"
    apart(begin_run(file))
    rates: dict[bool, list[float]] = {False: [], True: []}
    shares, asked = [], []
    with served(file) as (address, pid), browser() as page:
        page.on("response", lambda answer: asked.append(answer.url))
        for number in range(2 * rounds):
            is_watched = number % 2 == 1
            page.goto("about:blank")
            if is_watched:
                page.goto(f"{address}/s/{folder.name}/run/{RUN}")
                page.locator("#live-mark[data-state=live]").wait_for()
            asked.clear()
            command = [sys.executable, __file__, "write", "--store", str(file)]
            before, begin = cpu_of(pid), time.perf_counter()
            with subprocess.Popen(
                [*command, "--seconds", str(seconds)], stdout=subprocess.PIPE, text=True
            ) as writer:
                while writer.poll() is None:
                    page.wait_for_timeout(200)  # the browser goes on meanwhile
                share = (cpu_of(pid) - before) / (time.perf_counter() - begin)
                assert writer.returncode == 0, writer.returncode
                assert writer.stdout is not None
                rates[is_watched].append(float(writer.stdout.read()))
            if is_watched:
                shares.append(share)
                # A page that has not followed costs nothing.
                assert any(f"/run/{RUN}" in url for url in asked), asked
    say("rollouts/s, alone", rates[False])
    say("rollouts/s, watched", rates[True])
    pairs = zip(rates[False], rates[True], strict=True)
    say("costs, % of a turn before", [100 * (1 - watched / alone) for alone, watched in pairs])
    say("server, % of a core", [100 * share for share in shares])


async def begin_run(file: Path) -> None:
    """A store with a run under way, whose folder is the file's."""
    store = agl.SqliteLightningStore(file, durability="process")
    await run_store.begin_run(
        store, RunStart(run_id=RUN, algorithm="grpo", folder=str(file.parent))
    )
    await store.close()


async def write(file: Path, seconds: float) -> float:
    """Be the run: rollouts, their accounts and metrics; rollouts per second."""
    store = agl.SqliteLightningStore(file, durability="process")
    metrics = file.with_name(RunMetrics.FILE)
    step = len(metrics.read_text().splitlines()) if metrics.exists() else 0
    number, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        step += 1
        about = {"metadata": {"run": RUN, "step": step}, "mode": "train", "worker_id": "w"}
        for _ in range(OF_A_STEP):
            rollout = await store.start_rollout({"n": number}, **about)
            await store.add_many_spans([call_span(rollout, USER, "it"), reward_span(rollout, 1.0)])
            ids = (rollout.rollout_id, rollout.attempt.attempt_id)
            await store.update_attempt(*ids, status="succeeded")
            await put_parts(store, [account(rollout.rollout_id, step)])
            number += 1
        with metrics.open("a") as lines:
            lines.write(json.dumps({"step": step, "reward/mean": 1.0, "entropy": 1.0}) + "\n")
    rate = number / (time.perf_counter() - begin)
    await store.close()
    return rate


def account(rollout_id: str, step: int) -> LedgerPart:
    """Of a rollout whose one call teaches nothing."""
    of, call = {"rollout_id": rollout_id}, {"kind": "call", "call_id": "c"}
    return LedgerPart(
        **of,
        run=RUN,
        algorithm="grpo",
        step=step,
        mode="train",
        items=[LedgerItem(kind="rollout", **of), LedgerItem(**of, **call)],
        excluded=[Exclusion(**of, **call, reason="zero_advantage")],
    )


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def say(name: str, values: list[Any]) -> None:
    """The median of some values, and all of them."""
    told = " ".join(f"{value:.4g}" for value in values)
    print(f"{name:<34}{statistics.median(values):>12.4g}   ({told})")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["trace", "pages", "memory", "cost", "write"])
    parser.add_argument("--spans", type=int, default=50_000)
    parser.add_argument("--store", type=Path, help="of pages and write")
    parser.add_argument("--rollout", help="of pages, the one that is opened")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--changes", type=int, default=3_600)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    if given.what == "write":  # by ``cost``
        print(asyncio.run(write(given.store, given.seconds)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.what == "trace":
            measure_trace(folder, given.spans, given.rounds)
        elif given.what == "pages":
            measure_pages(given.store, given.rollout, given.rounds)
        elif given.what == "memory":
            measure_memory(folder, given.changes)
        else:
            measure_cost(folder, given.seconds, given.rounds)
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
