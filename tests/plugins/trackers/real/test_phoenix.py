"""The real Phoenix, a process of its own, shows what ``otlp`` sends: tokens, rewards, sessions."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
from tests.waiting import free_port

import agl_trackers

from ..runs import fit  # noqa: TID252

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
PYTHON = os.environ.get("AGL_PHOENIX_PYTHON") or (sys.executable if find_spec("phoenix") else None)
if PYTHON is None:
    pytest.skip("AGL_PHOENIX_PYTHON names no Python with arize-phoenix", allow_module_level=True)
STARTS = 600
"""Seconds for which the start of a process may take on a busy machine, most of it imports."""


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory):
    folder, port = tmp_path_factory.mktemp("phoenix"), free_port()
    own = {
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    }
    assert PYTHON is not None
    command = [PYTHON, "-m", "phoenix.server.main", "serve"]
    address = f"http://127.0.0.1:{port}"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **own}, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    try:
        until = time.monotonic() + STARTS
        while not is_up(address):
            said = (folder / "log").read_text()
            assert process.poll() is None, said
            assert time.monotonic() < until, said
            time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_up(address: str) -> bool:
    try:
        return urllib.request.urlopen(f"{address}/healthz", timeout=5).status == 200
    except OSError:
        return False


def get(address: str, path: str) -> Any:
    """The data of an answer; nothing where the project is not there yet."""
    try:
        with urllib.request.urlopen(f"{address}/v1/projects/rooms/{path}", timeout=60) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return []


def when(ask: Callable[[], Any], number: int) -> Any:
    """What is there once it is so many: Phoenix writes a moment after it has answered."""
    until = time.monotonic() + STARTS
    while len(found := ask()) < number:
        assert time.monotonic() < until, found
        time.sleep(0.1)
    return found


@pytest.mark.timeout(2 * STARTS)
def test_phoenix_has_tokens_rewards_and_a_session_per_rollout(phoenix, tmp_path):
    tracker = agl_trackers.OTLP(phoenix=phoenix, project="rooms", wait_seconds=STARTS)
    fit(tracker, tmp_path)
    spans = when(lambda: get(phoenix, "spans?limit=100"), 6 + 5 + 5)
    kinds = Counter(span["span_kind"] for span in spans)
    assert kinds == {"AGENT": 6, "LLM": 5, "EVALUATOR": 5}

    roots = {span["context"]["span_id"]: span for span in spans if span["span_kind"] == "AGENT"}
    calls = [span for span in spans if span["span_kind"] == "LLM"]
    assert {call["parent_id"] for call in calls} < set(roots)
    for call in calls:
        said = call["attributes"]
        assert said["llm.token_count.prompt"] == 7
        assert said["llm.token_count.completion"] == 2
        assert said["llm.model_name"] == "tiny"
    [failed] = [root for root in roots.values() if root["status_code"] == "ERROR"]
    assert failed["status_message"] == "agent: no kindness"

    ids = "&".join(f"span_ids={span_id}" for span_id in roots)
    annotations = when(lambda: get(phoenix, f"span_annotations?{ids}&limit=100"), 5)
    assert len(annotations) == 5
    assert {one["span_id"] for one in annotations} == set(roots) - {failed["context"]["span_id"]}
    assert {
        (one["name"], one["annotator_kind"], one["result"]["score"]) for one in annotations
    } == {("primary", "CODE", 0.75)}

    sessions = when(lambda: get(phoenix, "sessions?limit=100"), 6)
    rollouts = {root["attributes"]["session.id"] for root in roots.values()}
    assert {session["session_id"] for session in sessions} == rollouts
    assert len(rollouts) == 6
