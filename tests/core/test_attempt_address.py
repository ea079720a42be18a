"""The address and key with which an agent's calls belong to its attempt."""

import pytest

from agl import ProxyLLM
from agl.errors import ConfigError
from agl_http.tokens import issue_token, read_token


def llm(**fields: str) -> ProxyLLM:
    return ProxyLLM(endpoint="http://127.0.0.1:4000/v1", model="m", **fields)


def test_with_a_token_the_address_has_it():
    proxy = llm(api_key="k").opened("a-token")
    address = "http://127.0.0.1:4000/rollout/ro-1/attempt/at-1/token/a-token/v1"
    assert proxy.get_base_url("ro-1", "at-1") == address
    assert proxy.get_base_url() == "http://127.0.0.1:4000/v1"


async def test_what_an_attempt_gets_opens_nothing_else(store):
    rollout = await store.start_rollout(input="task")
    ids = rollout.rollout_id, rollout.attempt.attempt_id
    token = await issue_token(store, "model", *ids)
    opened = llm(api_key="the key").opened(token)
    bound = opened.with_attempted_rollout(rollout)
    assert bound.api_key == token
    assert token in bound.endpoint
    assert "the key" not in f"{bound!r} {opened.model_dump()}"
    grant = await read_token(store, token)
    assert (grant.role, grant.rollout_id, grant.attempt_id) == ("model", *ids)


def test_one_id_is_no_address():
    with pytest.raises(ConfigError, match="both ids or neither"):
        llm(attempt_token="t").of_attempt("ro-1", None)
