"""The address of an attempt at the gateway, and what it tells who has it."""

import pytest

from agl.errors import ConfigError
from agl.store.memory import InMemoryLightningStore
from agl.types import ProxyLLM


def llm(**fields: str) -> ProxyLLM:
    return ProxyLLM(endpoint="http://127.0.0.1:4000/v1", model="m", **fields)


def test_without_a_secret_the_address_is_that_of_the_guides() -> None:
    address = "http://127.0.0.1:4000/rollout/ro-1/attempt/at-1/v1"
    assert llm(api_key="k").get_base_url("ro-1", "at-1") == address


def test_with_a_secret_each_attempt_has_a_token_of_its_own() -> None:
    proxy = llm(attempt_secret="s")
    addresses = {
        proxy.get_base_url(rollout, attempt) for rollout in ("a", "b") for attempt in ("x", "y")
    }
    assert len({address.split("/token/")[1] for address in addresses}) == 4
    assert all(address.endswith("/v1") for address in addresses)
    other = llm(attempt_secret="t").get_base_url("a", "x")
    assert other not in addresses
    assert proxy.get_base_url() == "http://127.0.0.1:4000/v1"


async def test_what_an_attempt_gets_opens_nothing_else() -> None:
    proxy = llm(attempt_secret="the secret", api_key="the key")
    rollout = await InMemoryLightningStore().start_rollout(input="task")
    bound = proxy.with_attempted_rollout(rollout)
    assert bound.api_key is not None
    assert bound.api_key in bound.endpoint
    assert "the secret" not in str(bound)
    assert "the key" not in str(bound)


def test_one_id_is_no_address() -> None:
    with pytest.raises(ConfigError, match="both ids or neither"):
        llm(attempt_secret="s").of_attempt("ro-1", None)
