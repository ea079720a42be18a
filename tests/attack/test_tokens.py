"""What a token of each role can be used for against others, at a real server.

Each attack is made twice: with the token that the attacker has, and against the same store started
open, where it works.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

import agl
from agl.algorithm.gateway import is_gateway_span
from agl.errors import ConfigError
from agl.semconv import MODEL_CALL_SPAN, ModelCallAttributes
from agl.store.release import release_claim
from agl.types import Failure
from agl_http.roles import ALLOWED
from agl_http.tokens import Tokens, issue_token, tokens_of
from agl_server.calls import CALLS

KEY = {"question": "6 * 7", "private": {"answer": 42}}
ROLES = ("runner", "attempt", "model", "reader")


class Bench:
    """A store with a rollout that was claimed, another one, and a server before it."""

    def __init__(self, store: agl.LightningStore, server: agl.LightningStoreServer) -> None:
        self.store, self.server = store, server

    async def claim(self, claimed_by: str) -> Any:
        """Claim over the wire, as a runner does; the answer as it comes."""
        token = await issue_token(self.store, "runner")
        body = {"worker_id": claimed_by}
        _, (claimed,) = await self.ask("POST", "queues/rollouts/dequeue", body, token=token)
        return claimed

    async def ask(
        self, verb: str, path: str, body: Any = None, *, token: str = "", claims: str = ""
    ) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        headers |= {"AGL-Attempts": claims} if claims else {}
        url = f"{self.server.address}/v1/agl/{path}"
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.request(verb, url, json=body) as answer,
        ):
            return answer.status, json.loads(await answer.read())


@asynccontextmanager
async def serving(**options: Any) -> AsyncGenerator[Bench]:
    store = agl.InMemoryLightningStore()
    server = agl.LightningStoreServer(store, port=0, **options)
    await server.start()
    for task in (KEY, KEY):
        await store.enqueue_rollout(task)
    try:
        yield Bench(store, server)
    finally:
        await server.stop()


Attack = Callable[[Bench, Any, Any, str], Awaitable[tuple[int, Any]]]
"""The bench, what the attacker claimed, what another did, and the attacker's token."""


def reward_of(claimed: Any, value: float = 1.0, **fields: Any) -> dict[str, Any]:
    return {
        **agl.Span.from_attributes(
            rollout_id=claimed["rollout_id"],
            attempt_id=claimed["attempt"]["attempt_id"],
            name="agentlightning.annotation",
            attributes={
                "agentlightning.reward.0.name": "primary",
                "agentlightning.reward.0.value": value,
            },
        ).model_dump(),
        **fields,
    }


def path_of(claimed: Any) -> str:
    return f"rollouts/{claimed['rollout_id']}"


async def reads_all_keys(bench: Bench, own: Any, other: Any, token: str) -> tuple[int, Any]:
    return await bench.ask("GET", "rollouts", token=token)


async def reads_the_neighbour(bench: Bench, own: Any, other: Any, token: str) -> tuple[int, Any]:
    return await bench.ask("GET", path_of(other), token=token, claims=own["span_token"] or "")


async def rewards_the_neighbour(bench: Bench, own: Any, other: Any, token: str) -> tuple[int, Any]:
    body = [reward_of(other, -100.0)]
    return await bench.ask("POST", "spans/batch", body, token=token, claims=own["span_token"] or "")


async def hides_one_in_a_batch(bench: Bench, own: Any, other: Any, token: str) -> tuple[int, Any]:
    body = {"spans": [reward_of(own), reward_of(other, -100.0)]}
    return await bench.ask("POST", "turn", body, token=token, claims=own["span_token"] or "")


async def ends_the_neighbour(bench: Bench, own: Any, other: Any, token: str) -> tuple[int, Any]:
    path = f"{path_of(other)}/attempts/{other['attempt']['attempt_id']}"
    body = {"status": "failed"}
    return await bench.ask("POST", path, body, token=token, claims=own["span_token"] or "")


async def ends_the_latest(bench: Bench, own: Any, other: Any, token: str) -> tuple[int, Any]:
    path = f"{path_of(own)}/attempts/latest"
    body = {"status": "failed"}
    return await bench.ask("POST", path, body, token=token, claims=own["span_token"] or "")


async def rewrites_its_task(bench: Bench, own: Any, other: Any, token: str) -> tuple[int, Any]:
    body = {"input": "1 + 1"}
    return await bench.ask("POST", path_of(own), body, token=token, claims=own["span_token"] or "")


async def cancels_the_neighbour(bench: Bench, own: Any, other: Any, token: str) -> tuple[int, Any]:
    body = {"status": "requeuing"}
    claims = own["span_token"] or ""
    return await bench.ask("POST", path_of(other), body, token=token, claims=claims)


async def queues_work(bench: Bench, own: Any, other: Any, token: str) -> tuple[int, Any]:
    body = {"rollouts": [{"input": "buy coins"}]}
    return await bench.ask("POST", "queues/rollouts/enqueue", body, token=token)


async def swaps_the_model(bench: Bench, own: Any, other: Any, token: str) -> tuple[int, Any]:
    llm = {"resource_type": "llm", "endpoint": "http://evil.example/v1", "model": "m"}
    return await bench.ask("POST", "resources", {"llm": llm}, token=token)


async def forges_the_ledger(bench: Bench, own: Any, other: Any, token: str) -> tuple[int, Any]:
    account = {"kind": "ledger", "key": "r/1/grpo/ro", "body": {}, "rollout_id": own["rollout_id"]}
    return await bench.ask("POST", "documents", {"documents": [account]}, token=token)


async def deletes_a_rollout(bench: Bench, own: Any, other: Any, token: str) -> tuple[int, Any]:
    body = {"rollout_ids": [own["rollout_id"]]}
    return await bench.ask("POST", "rollouts/delete", body, token=token)


async def mints_a_token(bench: Bench, own: Any, other: Any, token: str) -> tuple[int, Any]:
    return await bench.ask("POST", "tokens", {"role": "admin"}, token=token)


ATTACKS: dict[Attack, tuple[str, ...]] = {
    reads_all_keys: ("runner", "attempt", "model"),
    reads_the_neighbour: ("runner", "attempt", "model"),
    rewards_the_neighbour: ROLES,
    hides_one_in_a_batch: ROLES,
    ends_the_neighbour: ROLES,
    ends_the_latest: ROLES,
    rewrites_its_task: ROLES,
    cancels_the_neighbour: ROLES,
    queues_work: ROLES,
    swaps_the_model: ROLES,
    forges_the_ledger: ROLES,
    deletes_a_rollout: ROLES,
    mints_a_token: ROLES,
}
"""Attack -> the roles whose tokens it is tried with; a reader may look at everybody."""


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_no_token_of_another_role_does_it(attack: Attack) -> None:
    async with serving() as bench:
        own, other = await bench.claim("mine"), await bench.claim("theirs")
        before = await bench.store.query_rollouts(), await bench.store.statistics()
        for role in ATTACKS[attack]:
            ids = (own["rollout_id"], own["attempt"]["attempt_id"])
            scoped = role in ("attempt", "model")
            token = await issue_token(bench.store, role, *(ids if scoped else ()))  # type: ignore
            status, answer = await attack(bench, own, other, token)
            assert (status, answer["error_type"]) == (403, "NotAllowedError"), role
        for token in ("", "Bearer", f"admin.0.0..{'a' * 32}"):
            assert (await attack(bench, own, other, token))[0] == 401
        after = await bench.store.query_rollouts(), await bench.store.statistics()
        assert before[0] == after[0]
        assert before[1].get("total_spans") == after[1].get("total_spans") == 0


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_against_an_open_store_it_works(attack: Attack) -> None:
    async with serving(open=True) as bench:
        own, other = await bench.claim("mine"), await bench.claim("theirs")
        own, other = {"span_token": None, **own}, {"span_token": None, **other}
        assert (await attack(bench, own, other, ""))[0] in (200, 201)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_an_admin_may_do_it(attack: Attack) -> None:
    async with serving() as bench:
        own, other = await bench.claim("mine"), await bench.claim("theirs")
        assert (await attack(bench, own, other, tokens_of(bench.store).admin))[0] in (200, 201)


# --- tokens themselves


def test_a_token_is_good_for_what_it_says_and_nothing_else() -> None:
    tokens = Tokens()
    token = tokens.issue("attempt", "ro-1", "at-1")
    grant = tokens.read(token)
    assert grant is not None
    assert (grant.role, grant.rollout_id, grant.attempt_id) == ("attempt", "ro-1", "at-1")
    role, expires, ids, signature = token.split(".")
    for forged in (
        f"admin.{expires}.{ids}.{signature}",
        f"{role}.9999999999.{ids}.{signature}",
        f"{role}.{expires}.{ids[:-1]}2.{signature}",
        f"{role}.{expires}.{ids}.{signature[:-1]}",
        f"{role}.{expires}.{ids}.",
        token[:-1] + ("A" if token[-1] != "A" else "B"),
        token + "A",
        "",
        "....",
        "é" * 10,
        "\ud800",
    ):
        assert tokens.read(forged) is None, forged
    odd = "rollout/1 ~.é"
    for kind in ("attempt", "model"):
        again = tokens.read(tokens.issue(kind, odd, "at 1"))  # type: ignore
        assert again is not None
        assert (again.rollout_id, again.attempt_id) == (odd, "at 1")
    assert Tokens().read(token) is None
    assert Tokens("a long random text").read(token) is None


def test_a_token_ends_with_its_time() -> None:
    tokens = Tokens("a long random text")
    assert tokens.read(tokens.issue("reader", seconds=60)) is not None
    assert tokens.read(tokens.issue("reader", seconds=-60)) is None


@pytest.mark.parametrize(
    ("role", "ids"),
    [("admim", ()), ("attempt", ()), ("model", ("ro-1", "")), ("runner", ("a", "b"))],
)
def test_a_token_that_makes_no_sense_is_not_made(role: Any, ids: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="roles are admin, runner"):
        Tokens().issue(role, *ids)


def test_every_operation_is_some_role_s_or_an_admin_s() -> None:
    by_hand = {
        "issue_token",
        "read_token",
        "turn",
        "add_many_spans",
        "get_many_span_sequence_ids",
        "wait_for_rollouts",
    }
    operations = {*CALLS, *by_hand, "dequeue_many_rollouts"}
    assert set().union(*ALLOWED.values()) <= operations
    admins = operations - set().union(*ALLOWED.values())
    assert admins == {
        "enqueue_many_rollouts",
        "start_rollout",
        "start_attempt",
        "put_documents",
        "delete_documents",
        "delete_rollouts",
        "add_resources",
        "update_resources",
        "issue_token",
        "read_token",
    }


# --- what runners, readers and agents may


async def test_a_reader_sees_neither_private_nor_keys_nor_what_graders_say() -> None:
    async with serving() as bench:
        own = await bench.claim("graded")
        failure = Failure(
            boundary="evaluator", type="GraderError", message="not PRIV-1", traceback="PRIV-2"
        )
        await bench.store.update_attempt(
            own["rollout_id"], own["attempt"]["attempt_id"], status="failed", error=failure
        )
        llm = agl.LLM(
            endpoint="http://user:sk-secret-2@127.0.0.1:1/v1",
            model="m",
            api_key="sk-secret",
            sampling_parameters={
                "extra_headers": {"Authorization": "sk-secret-3", "X-Vault": "sk-secret-4"},
                "extra_body": {"key": "sk-secret-5"},
                "top_p": 1,
            },
        )
        await bench.store.add_resources({"llm": llm})
        token = await issue_token(bench.store, "reader")
        seen = [
            await bench.ask("GET", path, token=token)
            for path in ("rollouts", "resources/latest", "resources", "workers")
        ]
        first = seen[0][1]["items"][0]["rollout_id"]
        seen.append(await bench.ask("GET", f"rollouts/{first}", token=token))
        seen.append(await bench.ask("GET", f"{path_of(own)}/attempts", token=token))
        seen.append(await bench.ask("GET", f"{path_of(own)}/attempts/latest", token=token))
        wait = {"rollout_ids": [first], "timeout": 0}
        seen.append(await bench.ask("POST", "waits/rollouts", wait, token=token))
        seen.append(await bench.ask("POST", "rollouts/search", {}, token=token))
        assert [status for status, _ in seen] == [200] * len(seen)
        text = json.dumps(seen)
        assert "6 * 7" in text
        assert "private" not in text
        assert "sk-secret" not in text
        assert "PRIV" not in text
        assert text.count("GraderError") >= 3
        _, whole = await bench.ask("GET", "rollouts", token=tokens_of(bench.store).admin)
        assert whole["items"][0]["input"] == KEY
        assert "PRIV-2" in json.dumps(whole)


async def test_a_refusal_says_what_was_asked_what_may_be_and_who_may() -> None:
    async with serving() as bench:
        own, other = await bench.claim("mine"), await bench.claim("theirs")
        runner = await issue_token(bench.store, "runner")
        told: list[str] = []
        for path, body, token in (
            ("statistics", None, runner),
            ("resources", {}, runner),
            (path_of(own), {"status": "cancelled"}, runner),
            ("spans/batch", [reward_of(other)], runner),
            ("spans/batch", [reward_of(other)], own["span_token"]),
        ):
            verb, shown = "GET" if body is None else "POST", own["span_token"]
            _, answer = await bench.ask(verb, path, body, token=token, claims=shown)
            told.append(answer["detail"])
        them = f"attempt {other['attempt']['attempt_id']!r} of rollout {other['rollout_id']!r}"
        assert told[0].startswith(
            "a token of role 'runner' may not statistics, which is for reader, admin; it may "
            "dequeue_many_rollouts, turn, "
        )
        assert "may not add_resources, which is for admin; it may dequeue" in told[1]
        assert told[2].endswith(
            "may update_rollout only to put it back: status='requeuing', and no other change"
        )
        assert told[3] == (
            f"a token of role 'runner' may not add_many_spans {them}: another has claimed it, or "
            "the token that came with the claim is not in the header AGL-Attempts. An admin may"
        )
        assert told[4] == (
            f"a token of role 'attempt' may not add_many_spans {them}: it is for one attempt, and "
            "that is another. An admin may"
        )


async def test_an_old_runner_neither_writes_to_nor_puts_back_what_another_has() -> None:
    async with serving() as bench:
        runner = await issue_token(bench.store, "runner")
        old = await bench.claim("old")
        await bench.store.update_rollout(old["rollout_id"], status="requeuing")
        await bench.claim("other")
        new = await bench.claim("new")
        assert new["rollout_id"] == old["rollout_id"]
        attempts = f"{path_of(new)}/attempts/{new['attempt']['attempt_id']}"
        for path, body in (
            (attempts, {"status": "succeeded"}),
            (path_of(new), {"status": "requeuing"}),
            ("spans/batch", [reward_of(new)]),
        ):
            status, _ = await bench.ask("POST", path, body, token=runner, claims=old["span_token"])
            assert status == 403
        claims = new["span_token"]
        body = {"status": "succeeded"}
        assert (await bench.ask("POST", attempts, body, token=runner, claims=claims))[0] == 200


async def test_a_runner_puts_back_what_it_claimed_and_will_not_run() -> None:
    async with serving() as bench:
        token = await issue_token(bench.store, "runner")
        client = agl.LightningStoreClient(bench.server.address, token=token)
        for claimed in await client.dequeue_many_rollouts(worker_id="w", limit=2):
            await release_claim(client, claimed)
        await client.close()
        assert [one.status for one in await bench.store.query_rollouts()] == ["requeuing"] * 2


async def test_a_span_says_who_wrote_it_as_its_token_does() -> None:
    async with serving() as bench:
        own = await bench.claim("mine")
        runner = await issue_token(bench.store, "runner")
        claims = own["span_token"]
        call = reward_of(own) | {"name": MODEL_CALL_SPAN}
        call["attributes"] = {ModelCallAttributes.OPERATION.value: "chat"}

        async def write(token: str, **fields: Any) -> int:
            span = {**call, "span_id": os.urandom(8).hex(), **fields}
            return (await bench.ask("POST", "spans/batch", [span], token=token, claims=claims))[0]

        assert await write(claims) == 201
        assert await write(claims, writer="gateway") == 201  # it becomes the agent's
        assert await write(runner) == 201
        assert await write(runner, writer="runner") == 201
        assert await write(runner, writer="gateway") == 403
        assert await write(runner, writer="algorithm") == 403
        assert await write(tokens_of(bench.store).admin, writer="gateway") == 201
        spans = await bench.store.query_spans(own["rollout_id"])
        assert [span.writer for span in spans] == ["agent", "agent", "agent", "runner", "gateway"]
        assert [is_gateway_span(span) for span in spans] == [False] * 4 + [True]


@pytest.mark.parametrize("options", [{}, {"open": True}], ids=["tokens", "open"])
async def test_a_reward_after_the_end_is_kept_and_counts_for_nothing(options: Any) -> None:
    async with serving(**options) as bench:
        own = await bench.claim("mine")
        token = own.get("span_token") or ""
        status, _ = await bench.ask("POST", "spans/batch", [reward_of(own, 0.5)], token=token)
        assert status == 201
        ids = own["rollout_id"], own["attempt"]["attempt_id"]
        await bench.store.update_attempt(*ids, status="succeeded")
        await bench.ask("POST", "spans/batch", [reward_of(own, 1.0)], token=token)
        spans = await bench.store.query_spans(own["rollout_id"])
        assert [span.late for span in spans] == [False, True]
        assert agl.find_final_reward(spans) == 0.5
        judged = agl.Span.model_validate(reward_of(own, 0.7, writer="algorithm"))
        await bench.store.add_span(judged)
        spans = await bench.store.query_spans(own["rollout_id"])
        assert agl.find_final_reward(spans) == 0.7  # an algorithm may judge later


# --- a whole run

TOOL = """
import json, os, urllib.error, urllib.request
answers = []
try:
    page = urllib.request.urlopen("http://127.0.0.1:%d/v1/agl/rollouts")
    answers.append(page.read().decode())
except urllib.error.HTTPError as error:
    answers.append(error.code)
answers.append(sorted(name for name in os.environ if "AGL" in name and "TOKEN" in name))
print(json.dumps(answers))
"""


def attacked_run() -> list[Any]:
    """What a tool of an agent gets out of the store of a run with the default strategy."""
    strategy = agl.ClientServerExecutionStrategy(server_port=0)
    strategy.prepare()
    port = strategy._socket.getsockname()[1]
    seen: list[Any] = []

    @agl.rollout
    def agent(task: Any) -> None:
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                assert not os.pread(int(number), 100, 0).startswith(b"admin.")
        code = TOOL % port
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        agl.emit_object({"seen": done.stdout, "failed": done.stderr})

    @agl.algo
    async def algorithm(store: agl.LightningStore) -> None:
        rollout = await store.enqueue_rollout(KEY)
        await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
        for span in await store.query_spans(rollout.rollout_id):
            seen.append(agl.get_object_value(span))

    agl.Trainer(algorithm=algorithm, strategy=strategy).fit(agent)
    (found,) = seen
    assert not found["failed"]
    return json.loads(found["seen"])


@pytest.mark.parametrize("given", [None, "sekret-long-enough"])
def test_a_tool_of_an_agent_gets_nothing_out_of_the_store_of_its_run(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if given is not None:
        monkeypatch.setenv("AGL_SERVER_TOKEN", given)
    assert attacked_run() == [401, []]
