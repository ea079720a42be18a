import asyncio
from collections.abc import Callable

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from agl_metrics import MetricsBackend


class Remembered(MetricsBackend):
    """A backend of somebody's own, which waits as one that writes to a socket does."""

    def __init__(self) -> None:
        self.counted: list[tuple[str, float, dict]] = []
        self.observed: list[tuple[str, float, dict]] = []

    def register_counter(self, name, label_names=None, group_level=None) -> None:
        pass

    def register_histogram(self, name, label_names=None, buckets=None, group_level=None) -> None:
        pass

    async def inc_counter(self, name, amount=1.0, labels=None) -> None:
        await asyncio.sleep(0)
        self.counted.append((name, amount, dict(labels or {})))

    async def observe_histogram(self, name, value, labels=None) -> None:
        await asyncio.sleep(0)
        self.observed.append((name, value, dict(labels or {})))

    def count(self, name: str, **labels: str) -> float:
        return sum(
            amount
            for counted, amount, given in self.counted
            if counted == name and labels.items() <= given.items()
        )


@pytest.fixture
def remembered() -> Remembered:
    return Remembered()


class Samples:
    """What a scrape brought, read by prometheus_client's own parser."""

    def __init__(self, text: str) -> None:
        self.all = [s for family in text_string_to_metric_families(text) for s in family.samples]

    def value(self, name: str, **labels: str) -> float:
        found = [s.value for s in self.all if s.name == name and labels.items() <= s.labels.items()]
        return sum(found)


async def scrape(url: str, token: str | None = None) -> Samples:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession() as http, http.get(url, headers=headers) as response:
        text = await response.text()
        assert response.status == 200, text
        assert response.headers["Content-Type"].startswith("text/plain; version=")
        return Samples(text)


async def until(look, holds: Callable) -> object:
    """Look until it holds; the limit of a test's time is the limit of this."""
    while True:
        found = await look()
        if holds(found):
            return found
        await asyncio.sleep(0.02)
