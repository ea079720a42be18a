"""The backends alone, and what they refuse."""

import logging

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import start_http_server

from agl_metrics import ConsoleMetricsBackend, MultiMetricsBackend, PrometheusMetricsBackend
from agl_metrics.console import percentiles

from .conftest import scrape


def backends() -> list:
    return [ConsoleMetricsBackend(), PrometheusMetricsBackend(CollectorRegistry())]


@pytest.mark.parametrize("backend", backends(), ids=["console", "prometheus"])
async def test_what_does_not_fit_is_refused(backend) -> None:
    backend.register_counter("agl.x.total", ["method"])
    backend.register_counter("agl.x.total", ["method"])  # again, which changes nothing
    backend.register_histogram("agl.x.latency")
    for register, name in (
        (lambda: backend.register_counter("agl.x.total", ["path"]), "agl.x.total"),
        (lambda: backend.register_histogram("agl.x.total", ["method"]), "agl.x.total"),
    ):
        with pytest.raises(ValueError, match=f"'{name}'.*registered already, as a counter"):
            register()
    for write, said in (
        (backend.inc_counter("agl.none"), "counter 'agl.none' is not registered"),
        (backend.observe_histogram("agl.x.total", 1.0), "histogram 'agl.x.total' is not regist"),
        (backend.inc_counter("agl.x.total"), "expected the labels method; got none"),
        (backend.inc_counter("agl.x.total", 1, {"path": "a"}), "labels method; got path"),
        (backend.inc_counter("agl.x.total", -1, {"method": "a"}), "only grows, got -1"),
        (backend.observe_histogram("agl.x.latency", 1.0, {"a": "b"}), "labels none; got a"),
    ):
        with pytest.raises(ValueError, match=said):
            await write


async def test_console_logs_rates_and_percentiles_by_the_first_labels(caplog) -> None:
    console = ConsoleMetricsBackend(log_interval_seconds=0.0, group_level=1)
    console.register_counter("agl.x.total", ["method", "status"])
    console.register_histogram("agl.x.latency", ["method", "status"])
    with caplog.at_level(logging.INFO, "agl.metrics"):
        for status in ("OK", "OK", "Error"):
            labels = {"method": "turn", "status": status}
            await console.observe_histogram("agl.x.latency", 0.002, labels)
            await console.inc_counter("agl.x.total", 2, labels)
    latency, total = caplog.messages[-2:]
    assert latency == "agl.x.latency{method=turn} 2.00ms 2.00ms 2.00ms"
    assert total.startswith("agl.x.total{method=turn} ")
    assert total.endswith("/s")


async def test_console_waits_between_two_logs(caplog) -> None:
    console = ConsoleMetricsBackend(log_interval_seconds=3600)
    console.register_counter("agl.x.total")
    with caplog.at_level(logging.INFO, "agl.metrics"):
        await console.inc_counter("agl.x.total")
    assert caplog.messages == []
    assert len(console.lines()) == 1


async def test_console_forgets_what_is_older_than_its_window() -> None:
    console = ConsoleMetricsBackend(window_seconds=0.0)
    console.register_histogram("agl.x.latency")
    await console.observe_histogram("agl.x.latency", 1.0)
    assert console.lines() == []


def test_percentiles_lie_between_the_nearest_values() -> None:
    # 0.5 * 2 = place 1; 0.95 * 2 = place 1.9; 0.99 * 2 = place 1.98.
    assert percentiles([20.0, 0.0, 10.0]) == pytest.approx([10.0, 19.0, 19.8])


async def test_backends_of_one_registry_share_their_metrics() -> None:
    registry = CollectorRegistry()
    for _ in range(2):
        backend = PrometheusMetricsBackend(registry)
        backend.register_counter("agl.x.total", ["method"])
        await backend.inc_counter("agl.x.total", labels={"method": "turn"})
    assert registry.get_sample_value("agl_x_total", {"method": "turn"}) == 2
    with pytest.raises(ValueError, match=r"'agl_x.total' is 'agl_x_total' at Prometheus"):
        backend.register_counter("agl_x.total")


async def test_several_backends_get_everything_and_prometheus_clients_server_shows_it() -> None:
    registry = CollectorRegistry()
    console, prometheus = ConsoleMetricsBackend(), PrometheusMetricsBackend(registry)
    several = MultiMetricsBackend([console, prometheus])
    several.register_counter("agl.x.total")
    several.register_histogram("agl.x.size", buckets=[1, 2])
    await several.inc_counter("agl.x.total", 3)
    await several.observe_histogram("agl.x.size", 1.5)
    assert [line.split(" ")[0] for line in console.lines()] == ["agl.x.size", "agl.x.total"]
    assert several.has_prometheus()
    assert several.exposition() == prometheus.exposition()
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        samples = await scrape(f"http://127.0.0.1:{server.server_port}/metrics")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert samples.value("agl_x_total") == 3
    assert samples.value("agl_x_size_bucket", le="1.0") == 0
    assert samples.value("agl_x_size_bucket", le="2.0") == 1
    with pytest.raises(ValueError, match="at least one"):
        MultiMetricsBackend([])


def test_metrics_go_to_the_library_s_own_registry_unless_told_otherwise() -> None:
    backend = PrometheusMetricsBackend()
    backend.register_counter("agl.default.total")
    assert prometheus_client.REGISTRY.get_sample_value("agl_default_total") == 0
