"""What importing ``agentlightning`` costs, beside importing the same of ``agl``.

Each sample is a fresh process, which says how much processor time the statements took; the two take
turns, so that whatever else the machine does meets both. Medians, and their ratio: at most 1.3.

    python benchmarks/compat_imports.py --samples 15
"""

import argparse
import statistics
import subprocess
import sys

from agl.cli.shared import print_table

PROGRAM = """
import time
begin = time.process_time()
{}
print(time.process_time() - begin)
"""
AGENT = "LitAgent, rollout, emit_reward, InMemoryLightningStore, Span, Trainer, OtelTracer"
CASES = {
    "the package": ("import agl", "import agentlightning"),
    "an agent's names": (f"from agl import {AGENT}", f"from agentlightning import {AGENT}"),
    "a store": (
        "import agl; agl.LightningStoreServer(agl.InMemoryLightningStore(), port=0)",
        "import agentlightning as agl\n"
        "agl.LightningStoreServer(agl.InMemoryLightningStore(), port=0)",
    ),
    "a trainer": (
        "import agl; agl.Trainer(tracer='agentops', adapter=agl.TracerTraceToTriplet())",
        "import agentlightning as agl; agl.Trainer()",
    ),
    "a proxy": ("import agl; agl.LLMProxy()", "import agentlightning as agl; agl.LLMProxy()"),
    "APO": ("import agl; agl.APO", "import agentlightning as agl; agl.APO"),
}
"""What is used -> the same by agl and by agentlightning."""


def cost(statements: str) -> float:
    """Milliseconds of processor time in a fresh process."""
    command = [sys.executable, "-c", PROGRAM.format(statements)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(ran.stdout.split()[-1]) * 1000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=15, help="processes of each kind")
    samples = parser.parse_args().samples
    rows: list[list[str]] = []
    for used, pair in CASES.items():
        for statements in pair:
            cost(statements)  # compiles what was not compiled yet
        taken = [[cost(statements) for statements in pair] for _ in range(samples)]
        ours, theirs = map(statistics.median, zip(*taken, strict=True))
        rows.append([used, f"{ours:.1f}", f"{theirs:.1f}", f"{theirs / ours:.2f}"])
    print_table(["used", "agl ms", "agentlightning ms", "ratio"], rows)


if __name__ == "__main__":
    main()
