"""``benchmarks/store_parts.py`` measures every part of every store."""

import re
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks/store_parts.py"


def test_every_part_of_every_store_is_measured() -> None:
    command = [sys.executable, str(BENCHMARK), "--count", "3"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^(\w+) +(\S.*?) +(\d+) +([\d.]+) +([\d.]+)$", done.stdout, re.M)
    parts = [part for store, part, *_ in rows if store == "memory"]
    assert len(parts) == 9
    stores = ("memory", "sqlite", "http")
    assert [row[:2] for row in rows] == [(store, part) for store in stores for part in parts]
    assert all(0 < float(half) <= float(most) for *_, half, most in rows)
