"""A test may take five CPU seconds, of its process and of those that it started and that ended.

A process that ends late counts to the test that is running then: so one fails only by four times as
much, and the ten that took most are printed. What several tests share, a fixture of a wider scope,
is nobody's. What may take longer is marked `slow`; `tests/house/test_shape.py` has their number.
"""

import os
import sys
from collections.abc import Generator
from typing import Any

import pytest

from . import fork_server

BUDGET = 5.0
OTHERS = {"slow", "nightly", "gpu"}
HEAVY = {"torch", "transformers.modeling_utils"}
"""Which is the first to import them in its process does so for all."""
_began = pytest.StashKey[tuple[float, set[str]]]()
_shared = 0.0


def _cpu_seconds() -> float:
    return sum(os.times()[:4]) + fork_server.cpu_seconds


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    global _shared
    began, inside = _cpu_seconds(), _shared
    try:
        return (yield)
    finally:
        if fixturedef.scope != "function":
            # With those that it asked for, which counted themselves meanwhile.
            _shared = inside + _cpu_seconds() - began


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_began] = _cpu_seconds() - _shared, HEAVY & sys.modules.keys()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown" and _began in item.stash:
        before, imported = item.stash[_began]
        took = _cpu_seconds() - _shared - before
        report.user_properties.append(("cpu seconds", took))
        free = not OTHERS.isdisjoint(mark.name for mark in item.iter_markers())
        free |= imported != HEAVY & sys.modules.keys()
        # Their sessions train for minutes.
        free |= not {"real", "examples"}.isdisjoint(item.path.parts)
        if report.passed and took > 4 * BUDGET and not free:
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} took {took:.1f} CPU seconds, and may take {BUDGET:g}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    took = [
        (dict(report.user_properties)["cpu seconds"], report.nodeid)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "teardown" and report.user_properties
    ]
    terminalreporter.section(f"CPU seconds of tests: {sum(each for each, _ in took):.0f}")
    for seconds, name in sorted(took, reverse=True)[:10]:
        terminalreporter.line(f"{seconds:5.1f}  {name}")
