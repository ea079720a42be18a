"""What may not be forged, repeated or suppressed by who has a token of a store, or knows an id.

Each attack has a twin that shows that it works where the defence is off.
"""

import time
from typing import Any

import aiohttp
import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tests.otlp_requests import request_of
from tests.stores import served

import agl
from agl.errors import ConfigError
from agl_http.tokens import Tokens, issue_token, tokens_of
from agl_server import runner_tokens

from .test_tokens import Bench, reward_of, serving

BOTH = pytest.mark.parametrize("open", [False, True], ids=["tokens", "open"])


async def later(_: Any) -> PlainTextResponse:
    return PlainTextResponse("of a plugin")


async def status_of(bench: Bench, path: str, token: str, body: bytes | None = None) -> int:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/x-protobuf"}
    verb, url = "GET" if body is None else "POST", f"{bench.server.address}{path}"
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.request(verb, url, data=body) as answer,
    ):
        await answer.read()
        return answer.status


@BOTH
async def test_pages_beside_the_store_are_for_admins_and_readers(open: bool) -> None:
    paths = ("/plugin/page", "/healthy", "/v1/agl/extra", "/v1/traces-of-all")
    async with serving(open=open, extra_routes=[Route(path, later) for path in paths]) as bench:
        own = await bench.claim("mine")
        ids = own["rollout_id"], own["attempt"]["attempt_id"]
        for path in ("/metrics", "/openapi.json", *paths):
            for role in ("runner", "attempt", "model"):
                token = await issue_token(bench.store, role, *(ids if role != "runner" else ()))
                assert await status_of(bench, path, token) == (200 if open else 403), role
            reader = await issue_token(bench.store, "reader")
            assert await status_of(bench, path, reader) == 200


@BOTH
async def test_otlp_adds_spans_to_no_attempt_but_the_tokens(open: bool) -> None:
    async with serving(open=open) as bench:
        own, other = await bench.claim("mine"), await bench.claim("theirs")
        spans = [agl.Span.model_validate(reward_of(one)) for one in (own, other)]
        token = own.get("span_token") or ""
        assert await status_of(bench, "/v1/traces", token, request_of(spans)) == 200
        stored = [len(await bench.store.query_spans(one["rollout_id"])) for one in (own, other)]
        assert stored == [1, 1 if open else 0]


@BOTH
async def test_a_turn_that_is_repeated_with_another_token_claims_nothing_of_the_first(open) -> None:
    async with serving(open=open) as bench:
        claim = {"claim": {"worker_id": "mine"}}
        claimed: list[list[str]] = []
        for _ in range(2):
            token = await issue_token(bench.store, "runner", seconds=60 + 60 * len(claimed))
            headers = {"Idempotency-Key": "1" * 32}
            headers |= {} if open else {"Authorization": f"Bearer {token}"}
            async with (
                aiohttp.ClientSession(headers=headers) as http,
                http.post(f"{bench.server.address}/v1/agl/turn", json=claim) as answer,
            ):
                claimed.append([one["rollout_id"] for one in (await answer.json())["claimed"]])
        # Without tokens all are one, and who knows the key gets what the first one claimed.
        assert (claimed[0] == claimed[1]) == open


@BOTH
@pytest.mark.parametrize("path", ["turn", "queues/rollouts/dequeue"])
@pytest.mark.parametrize("wait_seconds", [0.0, 0.1])
async def test_a_claims_key_gives_nothing_of_it_to_another_token(open, path, wait_seconds) -> None:
    async with serving(open=open) as bench:
        claim = {"worker_id": "mine", "key": "known", "wait_seconds": wait_seconds}
        one, other = [await issue_token(bench.store, "runner", seconds=60 * n) for n in (1, 2)]
        claimed: list[str] = []
        for token in (one, one, other):
            body = {"claim": claim} if path == "turn" else claim
            _, answer = await bench.ask("POST", path, body, token="" if open else token)
            (rollout,) = answer["claimed"] if path == "turn" else answer
            claimed.append(rollout["rollout_id"])
        assert claimed[0] == claimed[1]
        assert (claimed[0] == claimed[2]) == open


async def test_a_known_span_id_suppresses_no_span_of_another_attempt() -> None:
    async with serving() as bench:
        own, other = await bench.claim("mine"), await bench.claim("theirs")
        for squatted, value in ((own, 0.5), (other, -1.0)):
            # The second is the twin: within an attempt an id is taken once, so the squatter's
            # stays. The ids of runners and gateways are random, and no agent is told them.
            theirs = reward_of(other, 0.5)
            body = [{**reward_of(squatted, -1.0), "span_id": theirs["span_id"]}]
            for spans, token in ((body, squatted["span_token"]), ([theirs], other["span_token"])):
                assert (await bench.ask("POST", "spans/batch", spans, token=token))[0] == 201
            stored = await bench.store.query_spans(other["rollout_id"])
            assert agl.find_final_reward(stored) == value


@pytest.mark.parametrize("writer", ["agent", "algorithm"])
async def test_an_attempt_that_was_given_up_has_no_say_in_the_reward_of_the_next(writer) -> None:
    """Nor by a number and a time beyond all others; only an algorithm is believed so late."""
    store = agl.InMemoryLightningStore()
    old = await store.start_rollout("task")
    new = await store.start_attempt(old.rollout_id)  # as if the first had been silent for too long
    honest = reward_of(new.model_dump(), 0.2, writer="runner")
    await store.add_span(agl.Span.model_validate(honest))
    await store.update_attempt(new.rollout_id, new.attempt.attempt_id, status="succeeded")
    far = time.time() + 1e6
    forged = reward_of(
        old.model_dump(), 1.0, sequence_id=2**53, start_time=far, end_time=far, writer=writer
    )
    token = await issue_token(store, "attempt", old.rollout_id, old.attempt.attempt_id)
    if writer == "algorithm":
        token = tokens_of(store).admin
    async with served(store) as (server, _):
        asked = Bench(store, server).ask("POST", "spans/batch", [forged], token=token)
        assert (await asked)[0] == 201
        spans = await store.query_spans(new.rollout_id)
    assert [span.late for span in spans] == [False, writer == "agent"]
    assert agl.find_final_reward(spans) == (0.2 if writer == "agent" else 1.0)


def test_a_restart_ends_the_tokens_of_a_server_without_one_of_the_users_and_no_others() -> None:
    assert Tokens().read(Tokens().issue("runner")) is None
    assert Tokens("a long random text").read(Tokens("a long random text").issue("runner"))


def test_the_token_that_is_left_for_runners_is_its_users_alone(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    slot = runner_tokens.slot_of_server("http://127.0.0.1:4747")
    slot.put("token")
    (folder,) = tmp_path.iterdir()
    assert (folder.stat().st_mode & 0o777, slot.look()) == (0o700, "token")
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    slot.clear()
    assert slot.look() == ""
    folder.chmod(0o777)  # so another user could have put a token of its own server there
    file.write_text("of another")
    assert slot.look() == "of another"
    with pytest.raises(ConfigError, match="others can write there"):
        runner_tokens.slot_of_server("http://127.0.0.1:4747")
