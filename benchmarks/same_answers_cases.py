"""What ``same_answers.py`` asks: calls of a store's methods and raw requests to its server."""

import inspect
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

_METHODS = """
    statistics check_health
    enqueue_rollout enqueue_many_rollouts dequeue_rollout dequeue_many_rollouts
    start_rollout start_attempt
    add_span add_many_spans get_next_span_sequence_id get_many_span_sequence_ids query_spans
    query_rollouts get_rollout_by_id query_attempts get_latest_attempt wait_for_rollouts
    update_rollout update_attempt turn
    put_documents query_documents delete_documents
    add_resources update_resources get_resources_by_id get_latest_resources query_resources
    query_workers get_worker_by_id update_worker
"""
METHODS = _METHODS.split()
DERIVED = frozenset(
    [*METHODS[:3], "dequeue_rollout", "add_span", "get_next_span_sequence_id", "turn"]
)
"""Those that the contract makes of others."""

ODD_IDS = (
    "",
    "a/b",
    "..",
    ".",
    "a b",
    "é%2f?x#y",
    "latest",
    "search",
    "attempts",
    "ro-none",
    7,
    None,
)
ODD = ("odd", "", 0, -1, 2.5, True, [], ["odd"], {}, {"a": 1}, [None])
PREFIX = "/v1/agl"


@dataclass
class Scene:
    """A store with something of everything in it."""

    agl: Any
    ids: dict[str, str] = field(default_factory=dict)
    """Word -> id: rollouts ``run``, ``done``, ``wait``, ``fail``; their attempts ``run.at``."""

    def span(self, number: int, of: str = "run", **more: Any) -> Any:
        """A span that is the same each time."""
        return self.agl.Span.from_attributes(
            attributes={"n": number, "x": 1.5, "l": ["a"], "b": True},
            rollout_id=self.ids[of],
            attempt_id=self.ids[f"{of}.at"],
            name=f"span-{number % 2}",
            trace_id=f"{number % 3:032x}",
            span_id=f"{number:016x}",
            parent_id=f"{1:016x}" if number % 2 else None,
            start_time=1.0 + number,
            **more,
        )


async def make_scene(agl: Any, store: Any) -> Scene:
    """Fill a store."""
    scene = Scene(agl)
    config = agl.RolloutConfig(max_attempts=2, retry_condition=["failed"])
    first = await store.add_resources({"main": agl.LLM(endpoint="http://m/v1", model="m")})
    scene.ids["rs"] = first.resources_id
    prompt = agl.PromptTemplate(template="{x}", engine="f-string")
    await store.update_resources("my/own one", {"p": prompt})
    for word, mode in (("run", "train"), ("done", "val"), ("fail", None)):
        begun = await store.start_rollout(
            {"task": word}, mode, first.resources_id, config, {"m": 1}, f"w-{word}", key=f"k-{word}"
        )
        scene.ids[word], scene.ids[f"{word}.at"] = begun.rollout_id, begun.attempt.attempt_id
        await store.add_many_spans([scene.span(number, word) for number in range(1, 6)])
    await store.update_attempt(scene.ids["done"], "latest", status="succeeded", metadata={"a": 1})
    error = agl.Failure(boundary="agent", type="E", message="broke")
    await store.update_attempt(scene.ids["fail"], "latest", status="failed", error=error)
    for number in range(60):
        queued = await store.enqueue_rollout(number, key=f"queued-{number}")
        scene.ids.setdefault("wait", queued.rollout_id)
    await store.update_worker("w/ü 1", {"gpu": 0.5})
    await store.put_documents(
        [agl.Document(kind="note", key="a/1", body=[1], rollout_id=scene.ids["done"])]
    )
    return scene


# --- calls


def calls(agl: Any, method: str, scene: Scene) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Label, positional and keyword arguments of many calls of one method."""
    parameters = list(inspect.signature(getattr(agl.LightningStore, method)).parameters.values())[
        1:
    ]
    good = _good(agl, scene)[method]
    required = {p.name: good[p.name] for p in parameters if p.default is p.empty}
    leading = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    yield "all", [], good
    yield "required", [], required
    yield "positional", [good[name] for name in leading if name in good], {}
    yield "all positional", list(good.values()), {}
    yield "too many", [*good.values(), *range(20)], {}
    yield "nothing", [], {}
    yield "unknown", [], {**required, "no_such": 1}
    if leading and leading[0] in good:
        yield "twice", [good[leading[0]]], {**required, leading[0]: good[leading[0]]}
    for parameter in parameters:
        name = parameter.name
        odd = ODD_IDS if name in ("rollout_id", "attempt_id", "resources_id", "worker_id") else ODD
        for value in (None, agl.UNSET, *odd):
            if name in ("wait_seconds", "timeout") and value in (None, True, 2.5):
                continue  # those wait
            if name.endswith("_contains") and value in (0, True):
                continue  # ids are random
            yield f"{name}={value!r}", [], {**required, name: value}
        if name in good:
            yield f"only {name}", [], {**required, name: good[name]}
    for number, more in enumerate(_more(agl, scene).get(method, ())):
        yield f"more {number}", [], {**required, **more}


def _good(agl: Any, scene: Scene) -> dict[str, dict[str, Any]]:
    ids = scene.ids
    config = agl.RolloutConfig(timeout_seconds=900.0, max_attempts=3, retry_condition=["timeout"])
    task = {"input": {"q": ["é", 1.5, None]}, "mode": "test", "resources_id": ids["rs"]}
    task |= {"config": config, "metadata": {"deep": {"a": [1]}}}
    page = {"limit": 3, "offset": 1}
    order = {"sort_order": "desc"}
    attempt = {"rollout_id": ids["run"], "attempt_id": ids["run.at"]}
    error = agl.Failure(boundary="agent", type="E", message="broke", traceback="t")
    note = {"kind": "note", "key": "a/2", "body": {"x": 1}, "rollout_id": ids["done"], "version": 2}
    resources = {
        "a": agl.LLM(endpoint="http://m/v1", model="m", sampling_parameters={"t": 1}),
        "b": agl.PromptTemplate(template="{x}", engine="f-string"),
        "c": agl.ProxyLLM(endpoint="http://m/v1", model="m"),
    }
    claim = {"limit": 2, "worker_id": "w-9"}
    return {
        "statistics": {},
        "check_health": {},
        "enqueue_rollout": {**task, "key": "e-1"},
        "enqueue_many_rollouts": {"rollouts": [agl.EnqueueRolloutRequest(**task, key="e-2")]},
        "dequeue_rollout": {"worker_id": "w-9", "wait_seconds": 0.1},
        "dequeue_many_rollouts": {**claim, "wait_seconds": 0.1, "key": "d-1"},
        "start_rollout": {**task, "worker_id": "w-9", "key": "s-1"},
        "start_attempt": {"rollout_id": ids["wait"], "worker_id": "w-9", "key": "s-2"},
        "add_span": {"span": scene.span(10)},
        "add_many_spans": {"spans": [scene.span(11), scene.span(12, sequence_id=40)]},
        "get_next_span_sequence_id": attempt,
        "get_many_span_sequence_ids": {"rollout_attempt_ids": [(ids["run"], ids["run.at"])] * 2},
        "query_spans": {
            **attempt,
            **{f"{name}{end}": "0" * 15 for name in ("trace_id",) for end in ("", "_contains")},
            **{"span_id": f"{2:016x}", "span_id_contains": "2", "parent_id": f"{1:016x}"},
            **{"parent_id_contains": "1", "name": "span-1", "name_contains": "span"},
            **{"filter_logic": "or", **page, "sort_by": "start_time", **order},
        },
        "query_rollouts": {
            **{"status_in": ["running", "succeeded"], "rollout_id_in": list(ids.values())},
            **{"rollout_id_contains": "ro-", "filter_logic": "or", "sort_by": "start_time"},
            **order,
            **page,
            **{"status": ["failed"], "rollout_ids": [ids["wait"]]},
        },
        "get_rollout_by_id": {"rollout_id": ids["run"]},
        "query_attempts": {"rollout_id": ids["run"], "sort_by": "start_time", **order, **page},
        "get_latest_attempt": {"rollout_id": ids["run"]},
        "wait_for_rollouts": {"rollout_ids": [ids["done"], "ro-none"], "timeout": 0.1},
        "update_rollout": {
            **{"rollout_id": ids["run"], "input": [1], "mode": "val", "resources_id": ids["rs"]},
            **{"status": "running", "config": config, "metadata": {"a": 1}},
        },
        "update_attempt": {
            **{**attempt, "status": "running", "worker_id": "w-9", "last_heartbeat_time": 5.0},
            **{"metadata": {"a": 1}, "error": error},
        },
        "turn": {
            "spans": [scene.span(13)],
            "finish": None,
            **claim,
            "wait_seconds": 0.1,
            "key": "t",
        },
        "put_documents": {"documents": [agl.Document(**note)]},
        "query_documents": {
            **{"kind": "note", "rollout_id_in": [ids["done"]], "key_prefix": "a/", "after": "a/0"},
            **{"key_in": ["a/1"], "limit": 3},
        },
        "delete_documents": {"kind": "note", "keys": ["a/2", "none"]},
        "add_resources": {"resources": resources},
        "update_resources": {"resources_id": ids["rs"], "resources": resources},
        "get_resources_by_id": {"resources_id": ids["rs"]},
        "get_latest_resources": {},
        "query_resources": {
            **{"resources_id": ids["rs"], "resources_id_contains": "rs-", "sort_by": "version"},
            **order,
            **page,
        },
        "query_workers": {
            **{"status_in": ["busy", "idle"], "worker_id_contains": "w", "filter_logic": "or"},
            **{"sort_by": "worker_id", **order, **page},
        },
        "get_worker_by_id": {"worker_id": "w/ü 1"},
        "update_worker": {"worker_id": "w/ü 1", "heartbeat_stats": {"gpu": 1.5}},
    }


def _more(agl: Any, scene: Scene) -> dict[str, list[dict[str, Any]]]:
    """What no single odd value shows."""
    from agl.store.base import AttemptEnd

    ids = scene.ids

    def end(status: str, of: str = "run", **more: Any) -> dict[str, Any]:
        names = {"rollout_id": ids[of], "attempt_id": ids[f"{of}.at"]}
        return {"finish": AttemptEnd(**names, status=status, **more)}

    request = agl.EnqueueRolloutRequest
    error = agl.Failure(boundary="timeout", type="T", message="late")
    nan, inf = float("nan"), float("inf")
    broken = scene.span(20).model_copy(update={"attributes": {"n": nan}})
    stranger = scene.span(21).model_copy(update={"attempt_id": "at-none"})
    statuses = "queuing preparing running failed succeeded cancelled requeuing unresponsive timeout"
    fields = {
        "query_rollouts": "start_time end_time mode resources_id status input",
        "query_attempts": "rollout_id attempt_id sequence_id start_time status worker_id error",
        "query_spans": "sequence_id trace_id span_id parent_id name end_time attributes",
        "query_resources": "resources_id create_time update_time version resources",
        "query_workers": "worker_id status last_heartbeat_time current_rollout_id heartbeat_stats",
    }
    found: dict[str, list[dict[str, Any]]] = {
        "enqueue_many_rollouts": [
            {"rollouts": []},
            {"rollouts": [request(input=n) for n in range(3)]},
            {"rollouts": (request(input=1, key="x"), request(input=2, key="x"))},
            {"rollouts": [request(input=1), request(input=1, resources_id="rs-none")]},
        ],
        "enqueue_rollout": [
            {"input": value} for value in (nan, {1: 2}, b"x", {"a": inf}, "\ud800")
        ],
        "start_rollout": [
            {"input": nan},
            {"key": "s-1"},
            {"key": "queued-3"},
            {"resources_id": "no"},
        ],
        "start_attempt": [{"rollout_id": ids[word]} for word in ("run", "done", "fail", "wait")],
        "add_many_spans": [
            {"spans": []},
            {"spans": [scene.span(14), broken]},
            {"spans": [scene.span(15), stranger]},
            {"spans": (scene.span(1), scene.span(16, "done"))},
            {"spans": [scene.span(17, sequence_id=-1), scene.span(18, sequence_id=10**30)]},
        ],
        "add_span": [{"span": broken}, {"span": stranger}, {"span": scene.span(1)}],
        "query_spans": [
            *({"attempt_id": "latest", "name": "span-1", "limit": n} for n in (1, -1, 0, -2)),
            {"name": "span-1", "span_id": f"{2:016x}", "filter_logic": "or"},
            {"trace_id_contains": "1", "parent_id_contains": "1", "sort_by": None},
        ],
        "query_rollouts": [
            *({"status_in": [status]} for status in statuses.split()),
            {"status": ["running"], "rollout_ids": [ids["run"], ids["done"]]},
            {"status": [], "status_in": ["running"]},
            {"rollout_ids": []},
            {"limit": 2, "offset": 2, "sort_order": "desc"},
            {"limit": 1 << 60},
            {"offset": 1 << 60},
        ],
        "query_workers": [{"status_in": [one]} for one in ("idle", "busy", "unknown", "bussy")],
        "wait_for_rollouts": [
            {"rollout_ids": [ids["run"], ids["done"]], "timeout": 0},
            {"rollout_ids": (ids["done"],), "timeout": None},
        ],
        "update_rollout": [
            *({"status": status} for status in statuses.split()),
            {"rollout_id": ids["wait"], "status": "cancelled"},
            {"rollout_id": ids["done"], "metadata": None, "mode": None, "resources_id": None},
            {"input": None},
        ],
        "update_attempt": [
            *({"attempt_id": "latest", "status": status} for status in statuses.split()),
            {"rollout_id": ids["fail"], "attempt_id": ids["fail.at"], "error": error},
            {"last_heartbeat_time": inf},
        ],
        "turn": [
            {"spans": [broken]},
            {"spans": [stranger], **end("failed")},
            {"spans": [scene.span(22)], **end("failed", error=error), "limit": 0},
            {"spans": [scene.span(22)], **end("failed", error=error), "limit": 0},
            end("succeeded"),
            end("succeeded", "done"),
            {"limit": 3, "worker_id": "w-8", "key": "t-1"},
            {"limit": 3, "worker_id": "w-8", "key": "t-1"},
        ],
        "put_documents": [
            {"documents": []},
            {"documents": [agl.Document(kind="note", key="b", body=1, rollout_id="ro-none")]},
            {"documents": [agl.Document(kind="note", key="a/1", body=1, expect=7)]},
        ],
        "query_documents": [{"kind": "none"}, {"kind": "note", "rollout_id_in": []}],
        "add_resources": [{"resources": {}}],
        "get_resources_by_id": [{"resources_id": "my/own one"}],
        "get_worker_by_id": [{"worker_id": word} for word in ("w-run", "w-none", "latest")],
    }
    for method, names in fields.items():
        for name, order in itertools.product(names.split(), ("asc", "desc", "odd")):
            found.setdefault(method, []).append({"sort_by": name, "sort_order": order})
    return found


# --- requests

TOKEN = "a-token-that-nobody-guesses"
"""Of every server."""
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


@dataclass(frozen=True)
class Request:
    """A request; ``{word}`` in target and body becomes an id of the scene."""

    method: str
    target: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    route: str = ""
    """The path as the server describes it."""


JSON = {"Content-Type": "application/json"}
_LLM = {"resource_type": "llm", "endpoint": "http://m/v1", "model": "m"}
_ATTEMPT = {"rollout_id": "{run}", "attempt_id": "{run.at}"}
_CONFIG = {"timeout_seconds": 900.0, "max_attempts": 2, "retry_condition": ["failed"]}
_TASK = {"input": {"q": 1}, "mode": "val", "resources_id": "{rs}", "config": _CONFIG}
_PAGE = {"limit": 2, "offset": 1}
_ORDER = {"sort_order": "desc"}
_SPAN = {
    **_ATTEMPT,
    **{"sequence_id": 0, "trace_id": "1" * 32, "span_id": "a" * 16, "parent_id": None, "name": "n"},
    **{"status": {"status_code": "OK", "description": None}, "attributes": {"n": 1}, "events": []},
    **{"links": [], "start_time": 1.0, "end_time": 2.0, "context": None, "parent": None},
    **{"resource": {"attributes": {}, "schema_url": ""}},
}
_ERROR = {"boundary": "agent", "type": "E", "message": "broke", "traceback": None}
_SPANS = {
    **{**_ATTEMPT, "trace_id": "0", "trace_id_contains": "0", "span_id": "1", "name": "span-1"},
    **{"span_id_contains": "1", "parent_id": "1", "parent_id_contains": "1", "name_contains": "n"},
    **{"filter_logic": "or", **_PAGE, "sort_by": "start_time", **_ORDER},
}
_ROLLOUTS = {
    **{"status_in": ["running"], "rollout_id_in": ["{run}"], "rollout_id_contains": "ro"},
    **{"filter_logic": "or", "sort_by": "start_time", **_ORDER, **_PAGE},
}
_RESOURCES = {"resources_id": "{rs}", "resources_id_contains": "rs", "sort_by": "version"}
_RESOURCES |= {**_ORDER, **_PAGE}
_WORKERS = {"status_in": ["busy"], "worker_id_contains": "w", "filter_logic": "and"}
_WORKERS |= {"sort_by": "worker_id", **_ORDER, **_PAGE}
_NOTE = {"kind": "note", "key": "a/3", "body": 1, "rollout_id": "{done}", "version": 3}

ROUTES: tuple[tuple[str, str, dict[str, str], Any], ...] = (
    # verb, path, values of its parameters, a good body or query (None: there is none)
    ("GET", "/health", {}, None),
    ("GET", "/statistics", {}, None),
    ("POST", "/queues/rollouts/enqueue", {}, {"rollouts": [{**_TASK, "metadata": {"a": 1}}]}),
    ("POST", "/queues/rollouts/dequeue", {}, {"limit": 1, "worker_id": "w-9", "key": "d"}),
    (
        *("POST", "/turn", {}),
        {
            "spans": [_SPAN],
            "finish": {**_ATTEMPT, "status": "failed", "error": _ERROR},
            "claim": {"limit": 1, "worker_id": "w-9", "wait_seconds": 0.0, "key": "c"},
        },
    ),
    ("POST", "/waits/rollouts", {}, {"rollout_ids": ["{done}"], "timeout": 0.1}),
    ("GET", "/rollouts", {}, _ROLLOUTS),
    ("POST", "/rollouts", {}, {**_TASK, "metadata": None, "worker_id": "w-9", "key": "s"}),
    ("POST", "/rollouts/search", {}, _ROLLOUTS),
    ("GET", "/rollouts/{rollout_id}", {"rollout_id": "{run}"}, None),
    (
        *("POST", "/rollouts/{rollout_id}", {"rollout_id": "{run}"}),
        {**_TASK, "status": "running", "metadata": {"a": 1}},
    ),
    ("GET", "/rollouts/{rollout_id}/attempts", {"rollout_id": "{run}"}, {**_PAGE, **_ORDER}),
    (
        *("POST", "/rollouts/{rollout_id}/attempts", {"rollout_id": "{wait}"}),
        {"worker_id": "w-9", "key": "a"},
    ),
    (
        *("POST", "/rollouts/{rollout_id}/attempts/search", {"rollout_id": "{run}"}),
        {**_PAGE, **_ORDER, "sort_by": "start_time"},
    ),
    ("GET", "/rollouts/{rollout_id}/attempts/latest", {"rollout_id": "{run}"}, None),
    (
        *("POST", "/rollouts/{rollout_id}/attempts/{attempt_id}", _ATTEMPT),
        {
            **{"status": "running", "worker_id": "w-9", "last_heartbeat_time": 5.0},
            **{"metadata": {"a": 1}, "error": _ERROR},
        },
    ),
    ("GET", "/spans", {}, _SPANS),
    ("POST", "/spans", {}, _SPAN),
    ("POST", "/spans/batch", {}, [_SPAN]),
    ("POST", "/spans/search", {}, _SPANS),
    ("POST", "/spans/next", {}, _ATTEMPT),
    ("POST", "/documents", {}, {"documents": [_NOTE]}),
    ("POST", "/documents/search", {}, {"kind": "note", "key_prefix": "a", "limit": 2}),
    ("POST", "/documents/delete", {}, {"kind": "note", "keys": ["a/3"]}),
    ("GET", "/resources", {}, _RESOURCES),
    ("POST", "/resources", {}, {"a": _LLM}),
    ("GET", "/resources/latest", {}, None),
    ("GET", "/resources/{resources_id}", {"resources_id": "my/own%20one"}, None),
    (
        *("POST", "/resources/{resources_id}", {"resources_id": "x/y"}),
        {"p": {"resource_type": "prompt_template", "template": "t", "engine": "f-string"}},
    ),
    ("GET", "/workers", {}, _WORKERS),
    ("POST", "/workers/search", {}, _WORKERS),
    ("GET", "/workers/{worker_id}", {"worker_id": "w%2F%C3%BC%201"}, None),
    ("POST", "/workers/{worker_id}", {"worker_id": "w-9"}, {"heartbeat_stats": {"gpu": 1.5}}),
)
_ODD_STEPS = ("", "none", "a/b", "a%2Fb", "..", "%2E", "latest", "search", "x%20y", "%C3%BC", "1")
_ODD_BODIES = (
    *(b"", b" ", b"{", b"[]", b"[{}]", b"null", b"1", b'"x"', b"true", b"{}", b'{"a":NaN}'),
    *(b'{"a":1e999}', b"\xff\xfe", b'{"a":1,"a":2}', b"{} x", b"[" * 2000, b'{"\\ud800":1}'),
)
_ODD_VALUES = (
    *(None, "odd", "", 0, 1, -1, 2.5, 1e400, True, [], ["odd"], [1], [None], {}, {"a": 1}),
    *(10**30, "1", "\0", ["running", "running"]),
)
_ODD_QUERIES = ("odd", "", "0", "-1", "1", "2.5", "true", "null", "%C3%BC", "{run}")


def requests() -> dict[str, list[Request]]:
    """Group -> requests, in order; each group has a server of its own."""
    found: dict[str, list[Request]] = {}
    for verb, path, ids, good in ROUTES:
        found[f"{verb} {path}"] = list(_of_route(verb, path, ids, good))
    found["elsewhere"] = list(_elsewhere())
    found["token"] = [
        replace(one, headers=one.headers | more) for one in _each() for more in _TOKENS
    ]
    found["again"] = [
        replace(one, headers=one.headers | _AGAIN) for one in _each() for _ in range(2)
    ]
    return found


_TOKENS: tuple[dict[str, str], ...] = (
    {},
    {"Authorization": "Bearer wrong"},
    {"Authorization": f"bearer {TOKEN}"},
)
_AGAIN = {"Idempotency-Key": "again"}


def _each() -> Iterator[Request]:
    for verb, path, ids, good in ROUTES:
        if verb == "POST" or good is None:
            yield _request(verb, path, ids, good)


def _request(verb: str, path: str, ids: dict[str, str], body: Any, **headers: str) -> Request:
    target = PREFIX + path
    for name, value in ids.items():
        target = target.replace(f"{{{name}}}", value)
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    kind = JSON if verb != "GET" else {}
    return Request(verb, target, raw, {**kind, **headers}, PREFIX + path)


def _of_route(verb: str, path: str, ids: dict[str, str], good: Any) -> Iterator[Request]:
    if verb == "GET":
        yield from _of_query(path, ids, good)
    else:
        yield _request(verb, path, ids, good)
        for body in _ODD_BODIES:
            yield _request(verb, path, ids, body)
        for body in _mutated(good):
            yield _request(verb, path, ids, body)
        yield _request(verb, path, ids, good, **{"Content-Type": "text/plain"})
        yield _request(verb, path, ids, good, **{"Content-Type": "application/json; charset=utf-8"})
        yield _request(verb, path, ids, good, **{"Content-Encoding": "br"})
        plain = _request(verb, path, ids, good)
        yield replace(plain, headers={})
        yield replace(plain, target=f"{plain.target}?limit=1&nope=2")
        yield _request(verb, path, ids, good)
    for name in ids:
        for step in _ODD_STEPS:
            yield _request(verb, path, {**ids, name: step}, good if verb == "POST" else None)
    for other in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"):
        if other != verb:
            yield _request(other, path, ids, None if other in ("GET", "HEAD") else good)
    yield _request(verb, f"{path}/", ids, good if verb == "POST" else None)


def _of_query(path: str, ids: dict[str, str], good: Any) -> Iterator[Request]:
    plain = _request("GET", path, ids, None)
    needed = "rollout_id={run}" if path == "/spans" else ""
    yield plain
    yield replace(plain, target=f"{plain.target}?nope=1")
    yield replace(plain, target=f"{plain.target}?{needed}&nope=1")
    yield replace(plain, body=b'{"limit":1}', headers=JSON)
    for name, value in (good or {}).items():
        values = value if isinstance(value, list) else [value]
        for one in (*values, *_ODD_QUERIES):
            if name.endswith("_contains") and one.isdigit():
                continue  # ids are random
            yield replace(plain, target=f"{plain.target}?{needed}&{name}={one}")
        twice = "&".join(f"{name}={one}" for one in (*values, "x"))
        yield replace(plain, target=f"{plain.target}?{needed}&{twice}")
        yield replace(plain, target=f"{plain.target}?{needed}&{name}[]={values[0]}")
    for name in ("status", "rollout_ids", "status_in", "key"):
        yield replace(plain, target=f"{plain.target}?{needed}&{name}=running")


def _mutated(good: Any, waits: bool = True) -> Iterator[Any]:
    """The body with one thing in it wrong, at any depth."""
    if isinstance(good, list):
        for number, one in enumerate(good):
            for other in _mutated(one):
                yield [*good[:number], other, *good[number + 1 :]]
        yield [*good, *good]
    elif isinstance(good, dict):
        yield {**good, "nope": 1}
        for name in ("status", "rollout_ids", "wait_seconds"):
            yield {**good, name: ["running"]}
        for name, value in good.items():
            rest = {other: one for other, one in good.items() if other != name}
            yield rest
            yield {name: value}
            for odd in _ODD_VALUES:
                if name in ("wait_seconds", "timeout") and odd in (None, True, 2.5, 1, 1e400, "1"):
                    continue
                if name in ("wait_seconds", "timeout") and odd == 10**30:
                    continue
                if name.endswith("_contains") and odd == "1":
                    continue  # ids are random
                yield {**rest, name: odd}
            for other in _mutated(value):
                yield {**rest, name: other}


def _elsewhere() -> Iterator[Request]:
    """Paths beside the table."""
    yield Request("GET", "/health", route="/health")
    yield Request("GET", "/metrics", route="/metrics")
    for signal in ("traces", "metrics", "logs", "development/profiles"):
        path = f"/v1/{signal}"
        yield Request("POST", path, b"", JSON, path)
        yield Request("POST", path, b"", {"Content-Type": "application/x-protobuf"}, path)
        broken = {"Content-Type": "application/x-protobuf", "Accept-Encoding": "gzip"}
        yield Request("POST", path, b"\xff\xff", broken, path)
        yield Request("GET", path, route=path)
    for path in (
        "/",
        "/nowhere",
        PREFIX,
        f"{PREFIX}/",
        f"{PREFIX}/nowhere",
        "/docs",
        "/v1/agl/spans/x",
    ):
        for verb in ("GET", "POST", "OPTIONS"):
            yield Request(verb, path, b"{}" if verb == "POST" else b"", JSON)
    words = ("running", "odd", "")
    sizes = ("status_in", "rollout_id_in")
    for name, word in itertools.product(sizes, words):
        yield Request("GET", f"{PREFIX}/rollouts?{name}={word}")
    large = b'{"rollouts":[{"input":"%s"}]}' % (b"x" * 300_000)
    yield Request("POST", f"{PREFIX}/queues/rollouts/enqueue", large, JSON)
    yield from _each()
    yield Request("GET", "/metrics", route="/metrics")


def filled(request: Request, scene: Scene) -> Request:
    """The request with the ids of a scene."""
    target, body = request.target, request.body
    for word, found in scene.ids.items():
        target = target.replace(f"{{{word}}}", found)
        body = body.replace(f"{{{word}}}".encode(), found.encode())
    return replace(request, target=target, body=body)
