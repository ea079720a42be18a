"""The store's HTTP interface: the wire format of 0.3, and what is refused."""

import aiohttp
import pytest
from tests.stores import served

import agl

from .store_calls import ask, claim, enqueue, get, post, span_of


async def test_a_rollout_goes_through_its_life(http):
    (rollout_id,) = await enqueue(http, {"question": "six times seven"})
    rollout = await get(http, f"rollouts/{rollout_id}")
    assert rollout["status"] == "queuing"
    assert "attempt" not in rollout
    assert rollout["end_time"] is None

    (claimed,) = await claim(http, worker_id="w-1")
    assert claimed["rollout_id"] == rollout_id
    attempt_id = claimed["attempt"]["attempt_id"]
    number = await post(http, "spans/next", {"rollout_id": rollout_id, "attempt_id": attempt_id})
    assert number == {"sequence_id": 1}
    span = span_of(claimed, sequence_id=1)
    assert (await post(http, "spans", span, 201))["sequence_id"] == 1
    assert await post(http, "spans", span, 201) is None

    path = f"rollouts/{rollout_id}/attempts"
    latest = await get(http, f"{path}/latest")
    assert latest["status"] == "running"
    done = await post(http, f"{path}/latest", {"status": "succeeded"})
    assert done["status"] == "succeeded"
    ended = await post(http, "waits/rollouts", {"rollout_ids": [rollout_id]})
    assert [rollout["status"] for rollout in ended] == ["succeeded"]
    worker = await get(http, "workers/w-1")
    assert worker["status"] == "idle"


async def test_pages_echo_their_bounds(http):
    await enqueue(http, 1, 2, 3)
    page = await get(http, "rollouts", params={"limit": 2, "offset": 1})
    assert [page["limit"], page["offset"], page["total"], len(page["items"])] == [2, 1, 3, 2]
    page = await get(http, "rollouts", params=[("status_in", "failed")])
    assert page["total"] == 0
    page = await post(http, "rollouts/search", {"status_in": []})
    assert page["total"] == 0


@pytest.mark.parametrize(("page", "status"), [("", 200), ("resources", 404), ("workers", 404)])
async def test_address_says_in_a_browser_what_it_is(http, server, page, status):
    async with http.get(f"{server.endpoint}/{page}") as answer:
        assert answer.status == status
        assert "To see its pages, run: agl ui" in await answer.text()


async def test_client_without_a_token_is_told_of_once_on_both_sides(memory_store, caplog):
    way = "can take the URL http://agl:TOKEN@HOST:PORT"
    async with served(memory_store) as (server, _), aiohttp.ClientSession(server.address) as http:
        for agent in ("old/0.3", "old/0.3", "other"):
            headers = {"User-Agent": agent}
            async with http.get("/v1/agl/rollouts", headers=headers) as answer:
                assert (answer.status, way in await answer.text()) == (401, True)
    told = [record.getMessage() for record in caplog.records if way in record.getMessage()]
    assert all("token in a request from 127.0.0.1" in line for line in told)
    assert ["old/0.3" in line for line in told] == [True, False]


async def test_a_claim_needs_no_body(http):
    await enqueue(http, 1)
    (claimed,) = await post(http, "queues/rollouts/dequeue")
    assert claimed["input"] == 1
    assert await post(http, "queues/rollouts/dequeue") == []


async def test_resources_are_stored_under_any_name(http):
    prompt = {"prompt": {"resource_type": "prompt_template", "template": "{x}", "engine": "jinja"}}
    assert await get(http, "resources/latest") is None
    made = await post(http, "resources", prompt, 201)
    named = await post(http, "resources/beam%2F0", prompt)
    assert named["resources_id"] == "beam/0"
    assert await get(http, "resources/beam%2F0") == named
    assert await get(http, "resources/latest") == named
    assert await get(http, f"resources/{made['resources_id']}") == made
    assert await get(http, "resources/nobody") is None


async def test_null_clears_what_can_be_cleared(http):
    rollout = await post(http, "rollouts", {"input": 1, "metadata": {"a": 1}}, 201)
    path = f"rollouts/{rollout['rollout_id']}"
    changed = await post(http, path, {"metadata": None, "mode": "val"})
    assert (changed["metadata"], changed["mode"]) == (None, "val")
    for field in ("status", "config"):
        answer = await post(http, path, {field: None}, 400)
        assert field in answer["detail"]
    answer = await post(http, f"{path}/attempts/latest", {"status": None}, 400)
    assert answer["error_type"] == "InvalidQueryError"


async def test_a_batch_of_spans_is_answered_with_its_numbers(http):
    rollout = await post(http, "rollouts", {"input": 1}, 201)
    first, second = span_of(rollout), span_of(rollout)
    receipts = await post(http, "spans/batch", [first, second, first], 201)
    numbers = {receipt["span_id"]: receipt["sequence_id"] for receipt in receipts}
    assert len(receipts) == 2
    assert numbers == {first["span_id"]: 1, second["span_id"]: 2}


async def test_every_field_of_0_3_is_taken(http):
    """All that its client can send, in one life of a rollout; see its OpenAPI description."""
    llm = {"endpoint": "http://x/v1", "model": "m", "api_key": "k", "sampling_parameters": {}}
    resources = {
        "llm": llm | {"resource_type": "llm"},
        "proxy": llm | {"resource_type": "proxy_llm"},
        "prompt": {"resource_type": "prompt_template", "template": "x", "engine": "f-string"},
    }
    made = await post(http, "resources", resources, 201)
    seconds = {"timeout_seconds": 9.0, "unresponsive_seconds": 9.0}
    config = {**seconds, "max_attempts": 2, "retry_condition": ["failed"]}
    task = {"input": {"q": 1}, "mode": "train", "config": config, "metadata": {"a": 1}}
    task["resources_id"] = made["resources_id"]
    await post(http, "queues/rollouts/enqueue", {"rollouts": [task]}, 201)
    await post(http, "rollouts", task | {"worker_id": "w"}, 201)
    (rollout,) = await claim(http, limit=1, worker_id="w")
    path = f"rollouts/{rollout['rollout_id']}"
    await post(http, path, task | {"mode": None})
    change = {"status": "running", "worker_id": "w", "last_heartbeat_time": 1.5, "metadata": {}}
    await post(http, f"{path}/attempts/latest", change)
    span = span_of(rollout) | {"a_key_of_its_own": 1}
    await post(http, "spans", span, 201)
    await post(http, "workers/w", {"heartbeat_stats": {"cpu": 1}})
    page = {"limit": -1, "offset": 0, "sort_by": None, "sort_order": "asc"}
    within = {"status_in": ["running"], "rollout_id_in": None, "rollout_id_contains": None}
    within["filter_logic"] = "and"
    found = await post(http, "rollouts/search", page | within)
    assert [one["rollout_id"] for one in found["items"]] == [rollout["rollout_id"]]
    await post(http, f"{path}/attempts", {"worker_id": "w"}, 201)


MODEL = {"resource_type": "llm", "endpoint": "e"}
FINISH = {"rollout_id": "r", "attempt_id": "a", "status": "failed"}
ERROR = {"boundary": "agent", "type": "E", "message": "m"}


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("queues/rollouts/enqueue", {"rollouts": [{"input": 1, "inptu": 2}]}, "inptu"),
        ("queues/rollouts/enqueue", {"rollouts": [{"input": 1, "config": {"retry": 1}}]}, "retry"),
        ("queues/rollouts/enqueue", {"rollouts": [], "rollout": 1}, "rollout"),
        ("queues/rollouts/dequeue", {"worker": "w"}, "worker"),
        ("rollouts", {"input": 1, "metdata": {}}, "metdata"),
        ("rollouts/search", {"status": ["failed"]}, "status"),
        ("rollouts/search", {"status_in": ["bogus"]}, "status_in"),
        ("workers/search", {"status_in": ["bogus"]}, "status_in"),
        ("resources", {"p": {"resource_type": "prompt_template", "tmplate": "x"}}, "tmplate"),
        ("resources", {"m": {**MODEL, "model": "m", "sampling": {}}}, "sampling"),
        ("resources/rs", {"p": {**MODEL, "modle": "m"}}, "modle"),
        ("workers/w", {"stats": {}}, "stats"),
        ("turn", {"finish": {**FINISH, "error": {**ERROR, "stack": ""}}}, "stack"),
        ("waits/rollouts", {"rollout_ids": [], "wait": 1}, "wait"),
    ],
)
async def test_unknown_keys_and_words_are_refused_by_name(http, path, body, name):
    answer = await post(http, path, body, 422)
    assert name in [step for part in answer["detail"] for step in part["loc"]]
    assert (await get(http, "rollouts"))["total"] == 0


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "1" + "0" * 400 + ".0"])
async def test_numbers_that_json_does_not_have_are_refused(http, number):
    body = f'{{"rollouts": [{{"input": 1}}, {{"input": {{"x": [{number}]}}}}]}}'
    headers = {"content-type": "application/json"}
    given = {"data": body, "headers": headers, "expect": 422}
    answer = await ask(http, "POST", "queues/rollouts/enqueue", **given)
    assert answer["error_type"] == "ValidationError"
    assert (await get(http, "statistics"))["total_rollouts"] == 0


async def test_a_body_over_the_limit_is_refused(http):
    async def chunks():
        for _ in range(30):
            yield b" " * 10_000

    answer = await ask(http, "POST", "spans", data=b" " * 100_001, expect=413)
    assert "100001" in answer["detail"]
    # No length is announced for these.
    answer = await ask(http, "POST", "spans", data=chunks(), expect=413)
    assert "max_body_bytes" in answer["detail"]


async def test_an_unforeseen_error_shows_nothing_of_the_inside(http, store, caplog):
    store.statistics = None  # calling it raises a TypeError
    answer = await get(http, "statistics", 500)
    assert "NoneType" not in str(answer)
    assert "Traceback" not in str(answer)
    assert "NoneType" in caplog.text
    assert await get(http, "health")


@pytest.mark.parametrize("depth", [185, 191, 195, 199, 300])
async def test_what_was_stored_however_deep_can_be_listed(server, http, depth):
    """Answers hold records some levels deep: an input as deep as can be read fitted in no page."""
    body = '{"input": ' + "[" * depth + "]" * depth + "}"
    headers = {"content-type": "application/json"}
    async with http.post("rollouts", data=body, headers=headers) as response:
        stored = response.status == 201
        assert stored or response.status == 422, await response.text()
    assert stored == (depth < 192)
    client = agl.LightningStoreClient(server.endpoint)
    assert len(await client.query_rollouts()) == stored
    await client.close()
