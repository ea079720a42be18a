"""How long people wait for a store of a million rollouts: commands, and pages of agl ui.

    python benchmarks/filling /tmp/large/store.db   # some minutes, 18 GB
    python benchmarks/large_store.py /tmp/large/store.db [--runs 3] [--no-pages]

Of a command: seconds of the processor that its process took, all of it, from the start of the
interpreter (least and median of the runs), and how much of the least is more than a bare
``agl --version`` takes, whose limit is half a second. On a busy machine all of them grow, and so
does a fixed loop, whose time is printed beside. Bytecode is kept, as after any installation. A
command that takes over a minute is ended, and said to be.

Of a page: seconds until its HTML was there, over HTTP, from a server that has the file open (the
first request, and the median of the others).
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

AGL = Path(sys.executable).with_name("agl")
LONGEST = 60.0
LONG = '"pages"'
"""In the task of the rollout with very many spans."""
LIMIT_OF_COMMANDS, LIMIT_OF_PAGES, LIMIT_OF_FIRST = 0.5, 0.3, 1.0


def agl(*arguments: str) -> tuple[float, str]:
    """Seconds of the processor, and what was printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    env = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    try:
        done = subprocess.run(
            [AGL, *arguments], capture_output=True, text=True, env=env, timeout=LONGEST, check=False
        )
    except subprocess.TimeoutExpired:
        return LONGEST, ""
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"agl {' '.join(arguments)}: {done.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def commands(store: str) -> dict[str, list[str]]:
    """What is measured; ids are those of the newest rollouts."""
    rollouts = ["rollouts", "--path", store]
    newest = json.loads(agl(*rollouts, "--json", "--status", "succeeded", "--last", "40")[1])
    rollout = newest[-1]
    same = [one["rollout_id"] for one in newest if one["input"] == rollout["input"]]
    shown = json.loads(agl("show", rollout["rollout_id"], "--path", store, "--json")[1])
    run = json.loads(agl("runs", "--path", store, "--json")[1])[0]["run"]
    long = json.loads(agl(*rollouts, "--json", "--task", LONG, "--last", "1")[1])
    attempt = shown["attempt"]["attempt_id"]
    call = shown["calls"][0]["call_id"]
    show = ["show", "--path", store]
    made = {
        "--version": ["--version"],
        "rollouts": rollouts,
        "rollouts --last 100": [*rollouts, "--last", "100"],
        "rollouts --mode val": [*rollouts, "--mode", "val"],
        "rollouts --step 20": [*rollouts, "--step", "20"],
        "rollouts --sort reward": [*rollouts, "--sort", "reward"],
        "rollouts --mode val --sort reward": [*rollouts, "--mode", "val", "--sort", "reward"],
        "rollouts --step 20 --sort reward": [*rollouts, "--step", "20", "--sort", "reward"],
        "rollouts --failed": [*rollouts, "--failed"],
        "rollouts --task shop-0042": [*rollouts, "--task", "shop-0042"],
        "show": show,
        "show ROLLOUT": [*show, rollout["rollout_id"]],
        "show (its beginning)": [*show, rollout["rollout_id"][:-2]],
        "show ATTEMPT": [*show, attempt],
        "show ROLLOUT/CALL": [*show, f"{rollout['rollout_id']}/{call[:8]}"],
        "show CALL": [*show, call],
        "show shop-0042 (a task)": [*show, "shop-0042"],
        "show RUN": [*show, run],
        "ledger": ["ledger", store],
        "ledger --step 20": ["ledger", store, "--step", "20"],
        "runs": ["runs", "--path", store],
        "explain": ["explain", "--path", store, rollout["rollout_id"]],
    }
    if long:
        made["show (of 50,000 spans)"] = [*show, long[0]["rollout_id"]]
    if len(same) > 1:
        made["diff A B"] = ["diff", "--path", store, *same[-2:]]
    return made


def pages(base: str, run: str, rollout: str, long: str) -> dict[str, str]:
    """Addresses of pages."""
    table = f"{base}/rollouts"
    return {
        "run": f"{base}/run/{run}",
        "rollouts": table,
        "rollouts, failed": f"{table}?status=failed",
        "rollouts, val": f"{table}?mode=val",
        "rollouts, step 20": f"{table}?step=20",
        "rollouts, step 20 by reward": f"{table}?step=20&sort=reward",
        "rollouts, lowest rewards": f"{table}?sort=lowest",
        "rollouts, highest rewards, val": f"{table}?sort=reward&mode=val",
        "rollouts, reward below 0.3": f"{table}?below=0.3",
        "rollouts, reward above 0.9, val": f"{table}?above=0.9&mode=val",
        "rollouts, few rewards": f"{table}?above=0.299&below=0.3",
        "rollouts, by reward behind one": f"{table}?sort=reward&after={rollout}",
        "rollouts, last ended": f"{table}?sort=ended",
        "rollouts, by status": f"{table}?sort=status",
        "rollouts, part of an id": f"{table}?id={rollout[3:9]}",
        "rollouts, behind one": f"{table}?after={rollout}",
        "a rollout": f"{table}/{rollout}",
        "a trace of 50,000 spans": f"{table}/{long}",
        "runs": base.rsplit("/s/", 1)[0] + "/",
        "resources": f"{base}/resources",
        "runners": f"{base}/runners",
        "settings": f"{base}/settings",
    }


def get(url: str) -> float:
    """Seconds until the page was there."""
    begun = time.perf_counter()
    with urllib.request.urlopen(url) as answer:
        answer.read()
    return time.perf_counter() - begun


def table(title: str, rows: list[list[Any]]) -> None:
    """Print it."""
    print(f"\n{title}")
    for name, *cells in rows:
        print(f"  {name:<36}" + "".join(f"{cell:>10}" for cell in cells))


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("store", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--no-pages", action="store_true")
    given = parser.parse_args()
    store = str(given.store)
    bare = 0.0
    print("commands: processor seconds, least and median of the runs, least over --version")
    for name, arguments in commands(store).items():
        took = [agl(*arguments)[0] for _ in range(given.runs)]
        bare = bare or min(took)
        over = min(took) - bare
        seconds = "".join(f"{n:10.2f}" for n in (min(took), statistics.median(took), over))
        print(
            f"  {name:<36}{seconds}{'      slow' if over > LIMIT_OF_COMMANDS else ''}", flush=True
        )
    begun = time.process_time()
    sum(n * n for n in range(3_000_000))
    loop, load = time.process_time() - begun, os.getloadavg()[0]
    print(f"  load {load:.0f}; the loop took {loop:.2f} s")
    if not given.no_pages:
        measure_pages(store, given.runs)


def measure_pages(store: str, runs: int) -> None:
    """Start agl ui on a free port, ask for each page, end it."""
    newest = json.loads(agl("rollouts", "--path", store, "--json", "--last", "40")[1])
    done = [one["rollout_id"] for one in newest if one["status"] == "succeeded"]
    rollout = done[-1] if done else newest[-1]["rollout_id"]
    run = json.loads(agl("runs", "--path", store, "--json")[1])[0]["run"]
    long = json.loads(agl("rollouts", "--path", store, "--json", "--task", LONG)[1])
    server = subprocess.Popen(
        [AGL, "ui", store, "--open"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        address = next(word for line in server.stdout for word in line.split() if "http://" in word)
        root = address.rstrip("/.").split("?")[0]
        with urllib.request.urlopen(root) as answer:
            [of_store, *_] = re.findall(r'href="(/s/[^/"]+)', answer.read().decode())
        base = root + of_store
        long_id = long[0]["rollout_id"] if long else rollout
        rows: list[list[Any]] = []
        for name, url in pages(base, run, rollout, long_id).items():
            first, *others = [get(url) for _ in range(runs + 1)]
            median = statistics.median(others)
            is_slow = median > LIMIT_OF_PAGES or first > LIMIT_OF_FIRST
            rows.append([name, f"{first:.2f}", f"{median:.2f}", "slow" if is_slow else ""])
        load = os.getloadavg()[0]
        table(f"pages: seconds of the first request, and the median (load {load:.0f})", rows)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
