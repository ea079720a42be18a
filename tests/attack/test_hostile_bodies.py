"""Nothing that is sent to a store's server or a gateway breaks it: no 5xx, no end, no memory gone.

Slow and endless requests are in ``test_browser.py``, floods of packed bodies in
``test_packed_bodies.py``.
"""

import json
import socket
import time
import urllib.request
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from tests.interpreter import started
from tests.otlp_requests import request_of

import agl
from agl_server.routes import StoreRoutes

from .hostile import Attack, Attempt, Target, attacks

pytest.importorskip("agl_gateway")

MEBIBYTE = 2**20
TASK = {"input": {"q": 1}, "mode": "val", "config": {"max_attempts": 2}, "metadata": {"a": 1}}
ERROR = {"boundary": "agent", "type": "E", "message": "broke", "traceback": None}
LLM = {"resource_type": "llm", "endpoint": "http://m/v1", "model": "m"}
PAGE = {"limit": 2, "offset": 0, "sort_by": "start_time", "sort_order": "desc"}
USER = {"role": "user", "content": "hello"}
TOOL = {"name": "look", "description": "d", "parameters": {"type": "object", "properties": {}}}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CHAT = {
    "model": "m",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "be kind"}]},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "a room"},
    ],
    "tools": [{"type": "function", "function": TOOL}],
    **{"stream": False, "max_tokens": 3, "temperature": 0.5, "n": 1},
    **{"logprobs": True, "return_token_ids": True},
}
USED = {"type": "tool_use", "id": "c", "name": "a", "input": {}}
ANTHROPIC = {
    "messages": [
        USER,
        {"role": "assistant", "content": [USED]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "b"}]},
    ],
    **{"model": "m", "max_tokens": 3, "system": [{"type": "text", "text": "be kind"}]},
    **{"tools": [{"name": "look", "input_schema": {"type": "object"}}], "stop_sequences": ["x"]},
    **{"tool_choice": {"type": "auto"}, "stream": True},
}
RESPONSES = {
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "a room"},
    ],
    **{"model": "m", "instructions": "be kind", "tools": [{"type": "function", **TOOL}]},
    **{"max_output_tokens": 3, "stream": True},
}
COMPLETION = {"model": "m", "prompt": ["a", [1, 2]], "max_tokens": 3, "stream": False, "echo": True}
DIALECTS = {
    "chat/completions": CHAT,
    "completions": COMPLETION,
    "messages": ANTHROPIC,
    "messages/count_tokens": ANTHROPIC,
    "responses": RESPONSES,
}


@dataclass
class Servers:
    """A store's server and a gateway, and what they answered."""

    process: psutil.Process
    store: str
    gateway: str
    key: str
    """Opens the gateway."""
    span: dict[str, Any]
    attempts: list[dict[str, Any]]
    answers: Counter[int | None] = field(default_factory=Counter[int | None])

    def send(self, address: str, attack: Attack) -> None:
        """Send it, and look at the answer."""
        status = self._exchange(address, attack)
        self.answers[status] += 1
        if status is None:
            assert attack.target.may_wait or not attack.is_whole, "no answer"
            assert self.process.is_running()
        elif status == 501:
            assert attack.target.path in OTHER_SIGNALS
        else:
            assert status < 500

    def _exchange(self, address: str, attack: Attack) -> int | None:
        """The status of the answer; None where there was none."""
        at = urlsplit(address)
        seconds = 0.2 if attack.target.may_wait or not attack.is_whole else 30
        with socket.create_connection((at.hostname, at.port), timeout=30) as sock:
            try:
                for piece in attack.sent:
                    sock.sendall(piece)
                sock.settimeout(seconds)
                status, line = 100, b""
                with sock.makefile("rb") as answer:
                    while status == 100 and (line := answer.readline()):
                        status = int(line.split()[1])
                        while status == 100 and answer.readline().strip():
                            pass
            except (TimeoutError, ConnectionResetError, BrokenPipeError):
                return None
        return status if line else None

    @property
    def resident(self) -> int:
        """Bytes of memory that the process has."""
        return self.process.memory_info().rss


@pytest.fixture
def servers(tmp_path: Path) -> Generator[Servers]:
    script = Path(__file__).with_name("hostile_server.py")
    log = tmp_path / "log"
    with log.open("w") as errors:
        process = started(script, tmp_path / "agl.db", stderr=errors, text=True)
    said = process.stdout.readline()
    try:
        yield Servers(psutil.Process(process.pid), **json.loads(said or "{}"))
    finally:
        process.communicate(timeout=60)
    assert process.returncode == 0
    said = log.read_text(encoding="utf-8")
    assert "Traceback" not in said, said[-8000:]


OTHER_SIGNALS = ("/v1/metrics", "/v1/logs", "/v1/development/profiles")


def targets_of_the_store(span: dict[str, Any]) -> tuple[Target, ...]:
    """All routes of the server; a body that is not known here is made of its type."""
    packed = request_of([agl.Span.model_validate(span)])
    attempt = {name: f"{{{name}}}" for name in ("rollout_id", "attempt_id")}
    span = span | attempt
    claim = {"limit": 1, "worker_id": "w", "wait_seconds": 0.0, "key": "k"}
    finish = {**attempt, "status": "failed", "error": ERROR}
    bodies: dict[str, Any] = {
        "/v1/traces": packed,
        "queues/rollouts/enqueue": {"rollouts": [{**TASK, "key": "e"}]},
        "queues/rollouts/dequeue": claim,
        "turn": {"spans": [span], "finish": finish, "claim": claim},
        "waits/rollouts": {"rollout_ids": ["{rollout_id}"], "timeout": 0.0},
        "rollouts": {**TASK, "worker_id": "w", "key": "s"},
        "rollouts/{rollout_id}": {**TASK, "status": "running"},
        "rollouts/{rollout_id}/attempts": {"worker_id": "w", "key": "a"},
        "rollouts/{rollout_id}/attempts/{attempt_id}": {
            **{"status": "running", "worker_id": "w", "last_heartbeat_time": 5.0},
            **{"metadata": {"a": 1}, "error": ERROR},
        },
        "spans": span,
        "spans/batch": [span],
        "spans/next": attempt,
        "documents": {"documents": [{"kind": "n", "key": "a", "body": {"x": 1}, "version": 3}]},
        "documents/search": {"kind": "n", "key_prefix": "a", "key_in": ["a"], "limit": 2},
        "documents/delete": {"kind": "n", "keys": ["b"]},
        "rollouts/delete": {"rollout_ids": ["ro-none"], "only_count": True},
        "resources": {"a": LLM},
        "resources/{resources_id}": {"a": LLM},
        "workers/{worker_id}": {"heartbeat_stats": {"gpu": 1.5}},
    }
    search = {"status_in": ["running"], "filter_logic": "or", **PAGE}
    found = [Target("POST", path, {}) for path in OTHER_SIGNALS]
    found += [Target("GET", path) for path in ("/metrics", "/openapi.json", "/none", "*")]
    for route in StoreRoutes(agl.InMemoryLightningStore()).all():
        path = route.path.replace(":path}", "}")
        body = bodies.get(path.removeprefix("/v1/agl/"), search)
        if route.verb == "GET":
            body = getattr(route.body, "model_fields", {})
        may_wait = path.endswith(("dequeue", "turn", "waits/rollouts"))
        found.append(Target(route.verb, path, body, may_wait))
    return tuple(found)


def targets_of_the_gateway() -> tuple[Target, ...]:
    """All dialects, in all places."""
    places = ("", "/rollout/{rollout_id}/attempt/{attempt_id}")
    places += (f"{places[1]}/token/{{token}}",)
    found = [Target("GET", f"{place}/v1/models") for place in places]
    found += [Target("GET", path) for path in ("/health", "/none", "*")]
    for place in places:
        for what, body in DIALECTS.items():
            found.append(Target("POST", f"{place}/v1/{what}", body))
        found.append(Target("POST", f"{place}/end", {}))
    return tuple(found)


def limits(examples: int) -> settings:
    """So many, none of them repeated from an earlier run."""
    return settings(
        max_examples=examples,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


EXAMPLES = [100, pytest.param(10_000, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)])]


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("which", ["store", "gateway"])
def test_no_request_breaks_a_server(servers: Servers, which: str, examples: int) -> None:
    address = getattr(servers, which)
    is_store = which == "store"
    targets = targets_of_the_store(servers.span) if is_store else targets_of_the_gateway()
    opens = {} if is_store else {"admin": servers.key}
    attempts = [Attempt(one["ids"], one["tokens"] | opens) for one in servers.attempts]
    requests = attacks(targets, tuple(attempts))

    @limits(examples // 10)
    @given(requests)
    def warm_up(attack: Attack) -> None:
        servers.send(address, attack)

    @limits(examples)
    @given(requests)
    def attack_it(attack: Attack) -> None:
        servers.send(address, attack)

    warm_up()
    before, begin = servers.resident, time.monotonic()
    attack_it()
    grown = (servers.resident - before) / MEBIBYTE
    took = time.monotonic() - begin
    print(f"{which}: {examples} requests in {took:.0f} s, answered {dict(servers.answers)}")
    print(f"{which}: its memory was {before / MEBIBYTE:.0f} MiB, and then {grown:+.0f} MiB")
    with urllib.request.urlopen(f"{address}/health", timeout=10) as health:
        assert health.status == 200
    assert grown < 400
    # They reach what can break.
    assert servers.answers[200] + servers.answers[201] > examples / 20
