"""Count and time things, to the log and to Prometheus at once.

    python write_metrics.py              # ten seconds, at http://127.0.0.1:9464/metrics
    python write_metrics.py --seconds 1 --port 0

It pretends to answer requests. What a store server and a gateway count by themselves is told in
docs/howto/watch-with-prometheus.md. Needs ``agl-metrics`` and ``prometheus-client``.
"""

import argparse
import asyncio
import random
import time

import agl
from agl_metrics import ConsoleMetricsBackend, MultiMetricsBackend, PrometheusMetricsBackend


async def write_metrics(seconds: float) -> int:
    """Answer made-up requests for so long; returns how many."""
    metrics = MultiMetricsBackend([ConsoleMetricsBackend(), PrometheusMetricsBackend()])
    metrics.register_counter("example.requests.total", ["status"])
    metrics.register_histogram("example.latency", ["status"])
    draw, count, end = random.Random(0), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        started = time.perf_counter()
        await asyncio.sleep(draw.uniform(0.005, 0.05))
        labels = {"status": draw.choice(["ok", "ok", "ok", "error"])}
        await metrics.inc_counter("example.requests.total", labels=labels)
        await metrics.observe_histogram(
            "example.latency", time.perf_counter() - started, labels=labels
        )
        count += 1
    return count


def main() -> None:
    """Serve the metrics while they are written, and print them at the end."""
    from prometheus_client import generate_latest, start_http_server

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--port", type=int, default=9464, help="0: a free one")
    options = parser.parse_args()
    agl.setup_logging()
    server, _ = start_http_server(options.port, addr="127.0.0.1")
    print(f"http://127.0.0.1:{server.server_port}/metrics", flush=True)
    print(f"{asyncio.run(write_metrics(options.seconds))} requests", flush=True)
    lines = generate_latest().decode().splitlines()
    print("\n".join(line for line in lines if line.startswith("example_requests_total")))
    server.shutdown()


if __name__ == "__main__":
    main()
