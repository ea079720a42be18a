"""What a token of each role can be used for against others, at a real server.

Each attack is made twice: with the token that the attacker has, and against the same store started
open, where it works.
"""

import contextlib
import json
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from tests.interpreter import python
from tests.stores import served

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

    async def ask(self, verb, path, body=None, *, token="", claims="") -> tuple[int, Any]:
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
    for task in (KEY, KEY):
        await store.enqueue_rollout(task)
    async with served(store, **options) as (server, _):
        yield Bench(store, server)


def reward_of(claimed: Any, value: float = 1.0, **fields: Any) -> dict[str, Any]:
    reward = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": value}
    ids = {"rollout_id": claimed["rollout_id"], "attempt_id": claimed["attempt"]["attempt_id"]}
    span = agl.Span.from_attributes(name="agentlightning.annotation", attributes=reward, **ids)
    return {**span.model_dump(), **fields}


def path_of(claimed: Any) -> str:
    return f"rollouts/{claimed['rollout_id']}"


def attempt_of(claimed: Any) -> str:
    return f"{path_of(claimed)}/attempts/{claimed['attempt']['attempt_id']}"


def account_of(claimed: Any) -> dict[str, Any]:
    return {"kind": "ledger", "key": "r/1/grpo", "body": {}, "rollout_id": claimed["rollout_id"]}


FAILED, WORK = {"status": "failed"}, {"input": "buy coins"}


EVIL = {"resource_type": "llm", "endpoint": "http://evil.example/v1", "model": "m"}
ATTACKS: dict[str, Callable[[Any, Any], tuple[str, str, Any]]] = {
    "reads all keys": lambda own, other: ("GET", "rollouts", None),
    "reads the neighbour": lambda own, other: ("GET", path_of(other), None),
    "rewards the neighbour": lambda own, other: ("POST", "spans/batch", [reward_of(other, -9.0)]),
    "hides one in a batch": lambda own, other: (
        *("POST", "turn", {"spans": [reward_of(own), reward_of(other, -9.0)]}),
    ),
    "ends the neighbour": lambda own, other: ("POST", attempt_of(other), FAILED),
    "ends the latest": lambda own, other: ("POST", f"{path_of(own)}/attempts/latest", FAILED),
    "rewrites its task": lambda own, other: ("POST", path_of(own), {"input": "1 + 1"}),
    "cancels the neighbour": lambda own, other: ("POST", path_of(other), {"status": "requeuing"}),
    "queues work": lambda own, other: ("POST", "queues/rollouts/enqueue", {"rollouts": [WORK]}),
    "swaps the model": lambda own, other: ("POST", "resources", {"llm": EVIL}),
    "forges the ledger": lambda own, other: ("POST", "documents", {"documents": [account_of(own)]}),
    "deletes a rollout": lambda own, other: (
        *("POST", "rollouts/delete", {"rollout_ids": [own["rollout_id"]]}),
    ),
    "mints a token": lambda own, other: ("POST", "tokens", {"role": "admin"}),
}
"""Attack -> the request, of what the attacker claimed, and what another did."""
READS = ("reads all keys", "reads the neighbour")
"""What a reader may do: it may look at everybody."""


async def attempt(attack: str, bench: Bench, own: Any, other: Any, token: str) -> tuple[int, Any]:
    """Of an attacker who has a token, and the one that came with its claim."""
    claims = own.get("span_token") or ""
    return await bench.ask(*ATTACKS[attack](own, other), token=token, claims=claims)


@pytest.mark.parametrize("attack", ATTACKS)
async def test_no_token_of_another_role_does_it(attack: str) -> None:
    async with serving() as bench:
        own, other = await bench.claim("mine"), await bench.claim("theirs")
        before = await bench.store.query_rollouts(), await bench.store.statistics()
        for role in (role for role in ROLES if role != "reader" or attack not in READS):
            ids = (own["rollout_id"], own["attempt"]["attempt_id"])
            scoped = role in ("attempt", "model")
            token = await issue_token(bench.store, role, *(ids if scoped else ()))
            status, answer = await attempt(attack, bench, own, other, token)
            assert (status, answer["error_type"]) == (403, "NotAllowedError"), role
        for token in ("", "Bearer", f"admin.0.0..{'a' * 32}"):
            assert (await attempt(attack, bench, own, other, token))[0] == 401
        after = await bench.store.query_rollouts(), await bench.store.statistics()
        assert before[0] == after[0]
        assert before[1].get("total_spans") == after[1].get("total_spans") == 0


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("attack", ATTACKS)
async def test_against_an_open_store_it_works_and_an_admin_may(attack: str, is_open: bool) -> None:
    async with serving(open=is_open) as bench:
        own, other = await bench.claim("mine"), await bench.claim("theirs")
        token = "" if is_open else tokens_of(bench.store).admin
        assert (await attempt(attack, bench, own, other, token))[0] in (200, 201)


def test_a_token_is_good_for_what_it_says_and_nothing_else() -> None:
    tokens = Tokens()
    token = tokens.issue("attempt", "ro-1", "at-1")
    grant = tokens.read(token)
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
    by_hand = {"issue_token", "read_token", "turn", "add_many_spans", "wait_for_rollouts"}
    by_hand |= {"get_many_span_sequence_ids", "dequeue_many_rollouts"}
    operations = {*CALLS, *by_hand}
    assert set().union(*ALLOWED.values()) <= operations
    assert operations - set().union(*ALLOWED.values()) == {
        *("enqueue_many_rollouts", "start_rollout", "start_attempt", "put_documents"),
        *("delete_documents", "delete_rollouts", "add_resources", "update_resources"),
        *("issue_token", "read_token"),
    }


async def test_a_reader_sees_neither_private_nor_keys_nor_what_graders_say() -> None:
    async with serving() as bench:
        own = await bench.claim("graded")
        failure = Failure(
            boundary="evaluator", type="GraderError", message="not PRIV-1", traceback="PRIV-2"
        )
        ids = own["rollout_id"], own["attempt"]["attempt_id"]
        await bench.store.update_attempt(*ids, status="failed", error=failure)
        sampling = {"extra_headers": {"Authorization": "sk-secret-3", "X-Vault": "sk-secret-4"}}
        sampling |= {"extra_body": {"key": "sk-secret-5"}, "top_p": 1}
        llm = agl.LLM(
            endpoint="http://user:sk-secret-2@127.0.0.1:1/v1",
            model="m",
            api_key="sk-secret",
            sampling_parameters=sampling,
        )
        await bench.store.add_resources({"llm": llm})
        token = await issue_token(bench.store, "reader")
        wait = {"rollout_ids": [own["rollout_id"]], "timeout": 0}
        paths = ("rollouts", "resources/latest", "resources", "workers", path_of(own))
        paths += (f"{path_of(own)}/attempts", f"{path_of(own)}/attempts/latest")
        seen = [await bench.ask("GET", path, token=token) for path in paths]
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
        attempts = attempt_of(new)
        requeue = path_of(new), {"status": "requeuing"}
        rewarded = "spans/batch", [reward_of(new)]
        for path, body in ((attempts, {"status": "succeeded"}), requeue, rewarded):
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
        done = python("-c", code)
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
def test_a_tool_of_an_agent_gets_nothing_out_of_the_store_of_its_run(given, monkeypatch) -> None:
    if given is not None:
        monkeypatch.setenv("AGL_SERVER_TOKEN", given)
    assert attacked_run() == [401, []]
