"""Waiting for Azure: how long between looks, and what ends it."""

import asyncio
import logging
import threading

import pytest

from agl.errors import ConfigError
from agl_models.provider_errors import RemoteRefusalError

httpx = pytest.importorskip("httpx")
openai = pytest.importorskip("openai")
pytest.importorskip("azure.identity")


@pytest.fixture
def asking(sft):
    from agl_azure.client import AzureClient, Keys

    return AzureClient(sft(poll_seconds=3.0), Keys("key-1234567890", None))


@pytest.fixture
def waits(monkeypatch):
    """What was slept, which takes no time; servers of other tests, in their threads, sleep on."""
    slept, here, really = [], threading.get_ident(), asyncio.sleep

    async def sleep(seconds):
        if threading.get_ident() != here:
            await really(seconds)
        else:
            slept.append(seconds)

    monkeypatch.setattr("asyncio.sleep", sleep)
    return slept


def failure(kind, status, message="no", **headers):
    request = httpx.Request("GET", "http://azure")
    response = httpx.Response(status, headers=headers, request=request)
    return kind(message, response=response, body=None)


def looking(*answers):
    """Says one after the other; errors are raised."""
    left = iter(answers)

    async def look():
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return look


async def test_looks_get_rarer_and_an_overloaded_service_says_when(asking, waits, caplog):
    from agl_azure.client import NotYetError

    busy = failure(openai.RateLimitError, 429, "too busy", **{"retry-after": "7"})
    again = [NotYetError("running")] * 4
    assert await asking.until(looking(busy, *again, "done"), "it to end", 100.0) == "done"
    assert waits == [7.0, 1.5, 2.25, 3.0, 3.0]
    (told,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "could not look at it to end: 429: too busy" in told.getMessage()


@pytest.mark.parametrize("far", ["1000000000", "Fri, 31 Dec 9999 23:59:59 GMT"])
async def test_no_service_holds_a_run_for_years(asking, waits, far):
    busy = failure(openai.RateLimitError, 429, "too busy", **{"retry-after": far})
    assert await asking.until(looking(busy, "done"), "it to end", 1000.0) == "done"
    assert waits == [300.0]


async def test_nor_does_its_sdk_for_deployments(azure, sft, monkeypatch, tmp_path):
    from agl_azure import deployments
    from agl_azure.client import Keys
    from agl_learning.run.notes import Notes

    from .conftest import Login

    monkeypatch.setattr(deployments, "MAX_PAUSE_SECONDS", 0.01)
    azure.busy, azure.retry_after = 1, "1000000000"
    keys = Keys(azure.key, Login(azure.token))
    asking = deployments.Deployments(sft(), keys, Notes(tmp_path))
    assert await asking.models() == {"base": "gpt-base-2026-01-01"}
    assert azure.busy == 0
    await asking.close()


async def test_a_wait_that_is_too_long_ends_with_what_it_is_like(asking, waits):
    from agl_azure.client import NotYetError

    look = looking(NotYetError("queued"))
    message = "waited 1 seconds for it to end; it is 'queued' now"
    with pytest.raises(RemoteRefusalError, match=message):
        await asking.until(look, "it to end", 0.9)
    assert waits == []


async def test_what_will_not_pass_ends_the_wait_without_the_key(asking, waits):
    refused = failure(openai.AuthenticationError, 401, "no such key: key-1234567890")
    with pytest.raises(ConfigError, match=r"wait for it to end: 401: no such key: ") as caught:
        await asking.until(looking(refused), "it to end", 100.0)
    assert "key-1234567890" not in str(caught.value)
    assert waits == []
