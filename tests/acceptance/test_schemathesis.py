"""Requests of every form, made from the server's own description: never a 5xx."""

import asyncio
import contextlib
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

schemathesis = pytest.importorskip("schemathesis")

from hypothesis import HealthCheck, Phase, given, settings, strategies as st  # noqa: E402
from hypothesis.errors import Unsatisfiable  # noqa: E402
from schemathesis.core.errors import UnsupportedSchema  # noqa: E402

from agl.store.base import LightningStore  # noqa: E402
from agl.store.memory import InMemoryLightningStore  # noqa: E402
from agl.types import AttemptedRollout  # noqa: E402
from agl_server.server import LightningStoreServer  # noqa: E402
from agl_sqlite import SqliteLightningStore  # noqa: E402

REFUSALS = {400, 404, 405, 409, 413, 415, 422, 501}
"""501 answers OTLP signals other than traces."""
ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@pytest.fixture(params=[pytest.param("memory", marks=pytest.mark.nightly), "sqlite"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[LightningStoreServer]:
    store: LightningStore = InMemoryLightningStore()
    if request.param == "sqlite":
        store = SqliteLightningStore(tmp_path / "store.db", durability="process")
    server = LightningStoreServer(store, port=0, max_body_bytes=1_000_000)
    asyncio.run(server.start())
    yield server
    asyncio.run(server.close())


def aim(case: Any, known: AttemptedRollout) -> None:
    """Point a request at a rollout that there is."""
    ids = {"rollout_id": known.rollout_id, "attempt_id": known.attempt.attempt_id}
    for place in (case.path_parameters, case.query):
        if isinstance(place, dict):
            place.update({name: value for name, value in ids.items() if name in place})
    bodies = case.body if isinstance(case.body, list) else [case.body]
    for body in bodies:
        if not isinstance(body, dict):
            continue
        spans = body.get("spans")
        for part in [body, *(spans if isinstance(spans, list) else []), body.get("finish")]:
            if isinstance(part, dict):
                part.update({name: value for name, value in ids.items() if name in part})


def shorten(body: Any) -> None:
    """Let no request wait."""
    if isinstance(body, dict):
        for name in ("wait_seconds", "timeout"):
            value = body.get(name)
            if name in body and (value is None or (isinstance(value, int | float) and value > 0)):
                body[name] = 0.01
        shorten(body.get("claim"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("examples", [10, pytest.param(250, marks=pytest.mark.nightly)])
def test_no_request_breaks_the_server(server: LightningStoreServer, examples: int) -> None:
    """``examples`` of each operation, with valid and with invalid data."""
    schema = schemathesis.openapi.from_url(f"{server.endpoint}/openapi.json")
    mode = schemathesis.GenerationMode
    seen: set[int] = set()
    limits = settings(
        max_examples=examples,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) > 30
    for operation in operations:

        def check(case: Any, aimed: bool) -> None:
            if aimed:
                known = asyncio.run(server.target.start_rollout("task", worker_id="w"))
                aim(case, known)
            shorten(case.body)
            response = case.call(base_url=server.endpoint, timeout=100)
            seen.add(response.status_code)
            what = f"{case.as_curl_command()}\n{response.status_code} {response.text[:1000]}"
            assert response.status_code < 300 or response.status_code in REFUSALS, what
            if response.status_code >= 400 and response.content[:1] == b"{":
                assert json.loads(response.content)["detail"], what

        def check_with(case: Any, body: Any, aimed: bool) -> None:
            case.body = body
            check(case, aimed)

        for each in (mode.POSITIVE, mode.NEGATIVE):
            run = limits(given(operation.as_strategy(generation_mode=each), st.booleans())(check))
            # Where every text is valid, no data is invalid.
            impossible = () if each is mode.POSITIVE else (Unsatisfiable,)
            with contextlib.suppress(*impossible):
                try:
                    run()
                except UnsupportedSchema:
                    # It cannot negate a dict of unions (resources); most JSON is none of these.
                    assert each is mode.NEGATIVE
                    cases = operation.as_strategy(generation_mode=mode.POSITIVE)
                    limits(given(cases, ANY_JSON, st.booleans())(check_with))()
    assert {200, 201, 404, 422} <= seen
    assert asyncio.run(server.target.statistics())["total_rollouts"] > 0
