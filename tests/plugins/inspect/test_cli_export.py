"""``agl export`` out of a real store, and ``agl import`` into one."""

import asyncio
import contextlib
import json
import math
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agl.emitter import reward_attributes
from agl.semconv import AGL_ANNOTATION, MODEL_CALL_SPAN, ModelCallAttributes as Key
from agl.types import LLM, Document, Failure, PromptTemplate, RolloutConfig, Span, TraceStatus
from agl_sqlite import SqliteLightningStore
from agl_testing.otlp import request_of
from agl_views.tables.file_store import FileStore

Agl = Callable[..., tuple[object, str, str]]


@pytest.fixture
def agl(agl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return agl


def exported(agl: Agl, form: str, *arguments: str) -> list[dict[str, Any]]:
    code, out, err = agl("export", "--as", form, "--path", "s.db", *arguments)
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def call_span(prompt: str, answer: str, ids: tuple[list[int], list[int]] | None, **more: Any):
    attributes: dict[str, Any] = {
        Key.OPERATION.value: "chat",
        Key.INPUT_MESSAGES.value: json.dumps([{"role": "user", "content": prompt}]),
        Key.OUTPUT_MESSAGES.value: json.dumps([{"role": "assistant", "content": answer}]),
        **more,
    }
    if ids is not None:
        attributes[Key.PROMPT_TOKEN_IDS.value], attributes[Key.RESPONSE_TOKEN_IDS.value] = ids
        attributes[Key.RESPONSE_LOGPROBS.value] = [-0.5] * len(ids[1])
    return Span.from_attributes(name=MODEL_CALL_SPAN, attributes=attributes)


def reward_span(value: float) -> Span:
    return Span.from_attributes(name=AGL_ANNOTATION, attributes=reward_attributes(value))


def make_store(*rollouts: tuple[object, list[list[Span]], str]) -> list[str]:
    """A store of rollouts, each with input, the spans of each attempt, and the last's status."""

    async def fill() -> list[str]:
        store = SqliteLightningStore("s.db")
        ids = []
        for task, attempts, status in rollouts:
            rollout = await store.start_rollout(input=task, mode="train")
            for number, spans in enumerate(attempts):
                if number:
                    rollout = await store.start_attempt(rollout.rollout_id)
                owner = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
                await store.add_many_spans([span.model_copy(update=owner) for span in spans])
                if number < len(attempts) - 1:
                    await store.update_attempt(rollout.rollout_id, "latest", status="running")
            await store.update_attempt(rollout.rollout_id, "latest", status=status)  # type: ignore
            ids.append(rollout.rollout_id)
        await store.close()
        return ids

    return asyncio.run(fill())


IDS = ([1, 2, 3], [4, 5])


# --- rows, triplets, messages, sft


def test_rows_have_tokens_reward_and_where_they_come_from(agl):
    call = call_span("q", "a", IDS)
    (rollout_id,) = make_store(("t", [[call, reward_span(0.5)]], "succeeded"))
    (row,) = exported(agl, "rows")
    assert row["token_ids"] == [1, 2, 3, 4, 5]
    assert row["loss_mask"] == [0, 0, 0, 1, 1]
    assert row["logprobs"] == [0.0, 0.0, 0.0, -0.5, -0.5]
    assert (row["reward"], row["rewards"]) == (0.5, [0.5])
    assert row["provenance"]["rollout_id"] == rollout_id
    assert row["provenance"]["span_ids"] == [call.span_id]


def test_a_rollout_with_a_damaged_span_is_left_out_and_counted(agl):
    damaged = [call_span("its question", "a", IDS), reward_span(1.0)]
    whole = [call_span("another", "a", IDS), reward_span(0.5)]
    make_store(("t", [damaged], "succeeded"), ("t", [whole], "succeeded"))
    with contextlib.closing(sqlite3.connect("s.db")) as file, file:
        file.execute("UPDATE span SET body = '{' WHERE k = 1")
    code, out, err = agl("export", "--as", "rows", "--path", "s.db")
    assert (code, [json.loads(line)["reward"] for line in out.splitlines()]) == (0, [0.5])
    assert "calls left out: 1 malformed" in err


def test_what_a_judge_was_asked_is_no_sample(agl):
    one = ("t", [[call_span("q", "a", IDS), reward_span(0.5)]], "succeeded")
    (judged, judge) = make_store(one, one)

    async def mark() -> None:
        store = SqliteLightningStore("s.db")
        await store.update_rollout(judge, metadata={"judges": [judged]})
        await store.close()

    asyncio.run(mark())
    for form in ("rows", "sft", "messages"):
        (sample,) = exported(agl, form)
        assert sample["provenance"]["rollout_id"] == judged


def test_triplets_have_prompt_response_and_span(agl):
    call = call_span("q", "a", IDS)
    make_store(("t", [[call, reward_span(1.0)]], "succeeded"))
    (triplet,) = exported(agl, "triplets")
    assert triplet["prompt"]["token_ids"] == [1, 2, 3]
    assert triplet["response"]["token_ids"] == [4, 5]
    assert triplet["provenance"]["span_ids"] == [call.span_id]


def test_samples_are_prompt_and_completion_and_messages_are_both(agl):
    make_store(("t", [[call_span("q", "a", None), reward_span(1.0)]], "succeeded"))
    (sample,) = exported(agl, "sft")
    assert sample["prompt"] == [{"role": "user", "content": "q"}]
    assert sample["completion"] == [{"role": "assistant", "content": "a"}]
    (whole,) = exported(agl, "messages")
    assert whole["messages"] == sample["prompt"] + sample["completion"]
    assert whole["reward"] == 1.0


def test_only_the_attempt_that_succeeded_is_exported_and_the_rest_is_counted(agl):
    first, second = call_span("q", "first", IDS), call_span("q", "second", IDS)
    error = call_span("q", "x", None, **{Key.ERROR.value: "500"})
    make_store(
        ("t", [[first], [second, error, reward_span(1.0)]], "succeeded"),
        ("t", [[call_span("q", "lost", IDS)]], "failed"),
    )
    for form in ("rows", "sft", "messages", "triplets"):
        _, out, err = agl("export", "--as", form, "--path", "s.db")
        (record,) = [json.loads(line) for line in out.splitlines()]
        assert record["provenance"]["span_ids"] == [second.span_id], form
        for reason in ("1 superseded_attempt", "1 model_error", "1 failed_attempt"):
            assert reason in err, form


def test_low_rewards_other_agents_and_other_modes_can_be_left_out(agl):
    make_store(
        ("t", [[call_span("q", "low", None), reward_span(0.1)]], "succeeded"),
        (
            "t",
            [[call_span("q", "high", None, **{Key.AGENT_NAME.value: "solver"}), reward_span(0.9)]],
            "succeeded",
        ),
        ("t", [[call_span("q", "none", None)]], "succeeded"),
    )
    kept = exported(agl, "sft", "--min-reward", "0.5")
    assert [record["completion"][0]["content"] for record in kept] == ["high"]
    kept = exported(agl, "sft", "--agent-match", "^solver$")
    assert [record["completion"][0]["content"] for record in kept] == ["high"]
    assert exported(agl, "sft", "--mode", "val") == []


# --- dpo


def pair_texts(pairs: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(pair["chosen"][0]["content"], pair["rejected"][0]["content"]) for pair in pairs]


def answered(answer: str, reward: float | None) -> tuple[object, list[list[Span]], str]:
    spans = [call_span("q", answer, None)]
    return ("t", [spans if reward is None else [*spans, reward_span(reward)]], "succeeded")


def test_the_best_of_siblings_is_chosen_over_the_worst(agl):
    best, _, worst, _ = make_store(
        answered("best", 1.0), answered("middle", 0.5), answered("worst", 0.0), answered("?", None)
    )
    (pair,) = exported(agl, "dpo")
    assert pair_texts([pair]) == [("best", "worst")]
    assert pair["prompt"] == [{"role": "user", "content": "q"}]
    assert (pair["chosen_reward"], pair["rejected_reward"]) == (1.0, 0.0)
    assert pair["provenance"]["chosen"]["rollout_id"] == best
    assert pair["provenance"]["rejected"]["rollout_id"] == worst
    every = pair_texts(exported(agl, "dpo", "--pairs", "all"))
    assert sorted(every) == [("best", "middle"), ("best", "worst"), ("middle", "worst")]
    wide = pair_texts(exported(agl, "dpo", "--pairs", "all", "--min-gap", "0.5"))
    assert wide == [("best", "worst")]


def test_a_pair_is_where_the_ways_part(agl):
    """Both begin alike; the second calls have one prompt and two answers, the third differ."""
    make_store(
        *(
            (
                "t",
                [[call_span("q", "same", None), call_span("q2", second, None), reward_span(r)]],
                "succeeded",
            )
            for second, r in (("good", 1.0), ("bad", 0.0))
        )
    )
    assert pair_texts(exported(agl, "dpo")) == [("good", "bad")]


@pytest.mark.parametrize(
    ("rollouts", "reason"),
    [
        ([answered("a", 1.0)], "no_sibling_with_the_same_prompt"),
        ([answered("a", 1.0), answered("b", 1.0)], "same_reward_or_same_answer"),
        ([answered("a", 1.0), answered("a", 0.0)], "same_reward_or_same_answer"),
        ([answered("a", 1.0), answered("b", None)], "no_reward"),
        ([("t", [[reward_span(1.0)]], "succeeded")], "no_usable_call"),
    ],
)
def test_a_task_without_a_pair_says_why(agl: Agl, rollouts: list[Any], reason: str) -> None:
    make_store(*rollouts)
    code, out, err = agl("export", "--as", "dpo", "--path", "s.db")
    assert (code, out) == (0, "")
    assert f"tasks that gave none: 1 {reason}" in err


# --- files


def test_parquet_holds_what_jsonl_holds(agl):
    parquet = pytest.importorskip("pyarrow.parquet")
    tool_call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "q"}], "mood": "curious"},
        {"role": "assistant", "content": None, "tool_calls": [tool_call]},
        {"role": "tool", "content": "a cat", "tool_call_id": "c1"},
    ]
    call = call_span("q", "a", IDS, **{Key.INPUT_MESSAGES.value: json.dumps(messages)})
    make_store(("t", [[call, reward_span(1.0)]], "succeeded"), answered("b", 0.5))
    for form in ("rows", "triplets", "messages", "sft", "dpo"):
        lines = exported(agl, form)
        code, _, err = agl("export", "--as", form, "--path", "s.db", "-o", f"{form}.parquet")
        assert code == 0, err
        rows = parquet.read_table(f"{form}.parquet").to_pylist()
        assert len(rows) == len(lines), form
        for row, line in zip(rows, lines, strict=True):
            assert row.get("reward") == line.get("reward")
            assert row["provenance"] == line["provenance"]
    row = parquet.read_table("sft.parquet").to_pylist()[0]
    user, assistant, tool = row["prompt"]
    assert json.loads(user["content"]) == messages[0]["content"]
    assert json.loads(user["more"]) == {"mood": "curious"}
    assert assistant["tool_calls"] == [tool_call]
    assert tool["tool_call_id"] == "c1"


def test_a_file_appears_whole_or_not_at_all(agl, tmp_path):
    make_store(answered("a", 1.0))
    code, out, _ = agl("export", "--as", "sft", "--path", "s.db", "-o", "sft.jsonl")
    assert (code, out) == (0, "")
    assert json.loads((tmp_path / "sft.jsonl").read_text())["reward"] == 1.0
    assert not list(tmp_path.glob("*.part"))
    code, _, err = agl("export", "--as", "sft", "--path", "s.db", "-o", "sft.csv")
    assert (code, err) == (2, "agl: sft.csv: expected a name that ends in .jsonl or .parquet\n")
    code, _, err = agl("export", "--as", "dpo", "--path", "s.db", "--min-reward", "1")
    assert (code, err) == (2, "agl: --min-reward has no meaning for dpo; use --min-gap\n")


# --- import


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


RECORDED = {
    "resources": [{"name": "main_prompt", "type": "prompt_template", "template": "Say {q}"}],
    "rollouts": [
        {"id": "a", "input": "2+2?", "output": "4", "mode": "train"},
        {"rollout_id": "b", "input": "2+2?", "output": "5", "mode": "train"},
        {
            "id": "c",
            "input": {"q": 1},
            "messages": [
                {"role": "user", "content": "u"},
                {"role": "assistant", "content": "x"},
                {"role": "user", "content": "v"},
                {"role": "assistant", "content": "y"},
            ],
        },
        {
            "id": "d",
            "input": "tokens",
            "calls": [
                {
                    "messages": [{"role": "user", "content": "u"}],
                    "response": "w",
                    "promptTokenIds": [1],
                    "responseTokenIds": [2],
                    "responseLogprobs": [-0.1],
                }
            ],
        },
        {"id": "e", "input": "x", "status": "failed", "error": "boom"},
    ],
    "rewards": [
        {"rolloutId": "a", "value": 1},
        {"rolloutId": "b", "value": 0, "comment": "wrong"},
        {"rolloutId": "c", "value": 0.25, "call": 0},
        {"rolloutId": "d", "reward": 0.5},
    ],
}


def write(name: str, value: Any) -> str:
    Path(name).write_text(json.dumps(value))
    return name


async def read_store() -> tuple[list[Any], dict[str, list[Span]], list[Any]]:
    store = SqliteLightningStore("s.db")
    rollouts = list(await store.query_rollouts())
    spans = {r.rollout_id: list(await store.query_spans(r.rollout_id)) for r in rollouts}
    resources = list(await store.query_resources())
    await store.close()
    return rollouts, spans, resources


def test_recorded_rollouts_become_learning_data(agl):
    code, out, err = agl("import", write("run.json", RECORDED), "--path", "s.db")
    assert (code, out) == (0, "")
    assert err == "5 rollouts, 9 spans, 4 rewards, 1 snapshots of resources in s.db\n"
    rollouts, spans, resources = asyncio.run(read_store())
    assert [r.status for r in rollouts] == ["succeeded"] * 4 + ["failed"]
    assert [r.metadata["imported"]["id"] for r in rollouts] == list("abcde")
    assert rollouts[4].attempt.error.message == "boom"
    assert {r.resources_id for r in rollouts} == {resources[0].resources_id}
    assert resources[0].resources["main_prompt"].template == "Say {q}"
    kinds = [span.name == MODEL_CALL_SPAN for span in spans[rollouts[2].rollout_id]]
    assert kinds == [True, False, True]  # the reward of call 0 stands before call 1

    assert pair_texts(exported(agl, "dpo")) == [("4", "5")]
    (row,) = exported(agl, "rows")
    assert (row["token_ids"], row["reward"]) == ([1, 2], 0.5)
    per_call = exported(agl, "sft", "--credit", "per_call", "--min-reward", "0.2")
    assert [r["completion"][0]["content"] for r in per_call] == ["4", "x", "w"]


def test_a_second_import_adds_only_what_is_new(agl):
    agl("import", write("run.json", RECORDED), "--path", "s.db")
    before = asyncio.run(read_store())
    _, _, err = agl("import", "run.json", "--path", "s.db")
    assert err.startswith("0 rollouts (5 were there already), 0 spans, 0 rewards, 0 snapshots")
    assert asyncio.run(read_store()) == before
    more = {**RECORDED, "rewards": [*RECORDED["rewards"], {"rolloutId": "c", "value": 0.75}]}
    _, _, err = agl("import", write("run.json", more), "--path", "s.db")
    assert ", 1 rewards," in err


def test_an_interrupted_import_is_finished_by_the_next(agl):
    async def begin() -> None:
        store = SqliteLightningStore("s.db")
        await store.start_rollout("2+2?", metadata={"imported": {"id": "a", "from": "run.json"}})
        await store.close()

    asyncio.run(begin())
    agl("import", write("run.json", RECORDED), "--path", "s.db")
    rollouts, spans, _ = asyncio.run(read_store())
    assert len(rollouts) == 5
    assert rollouts[0].status == "succeeded"
    assert len(spans[rollouts[0].rollout_id]) == 2


def test_rewards_can_be_given_later_to_rollouts_of_the_store(agl):
    (rollout_id,) = make_store(answered("a", None))
    rewards = {"rewards": [{"rollout_id": rollout_id, "value": 0.75}]}
    assert agl("import", write("labels.json", rewards), "--path", "s.db")[0] == 0
    (sample,) = exported(agl, "sft")
    assert sample["reward"] == 0.75


def test_lines_are_read_one_by_one_and_rewards_may_come_last(agl):
    lines = [{"rollout": r} for r in RECORDED["rollouts"]]
    lines += [{"reward": r} for r in RECORDED["rewards"]]
    Path("run.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    code, _, err = agl("import", "run.jsonl", "--path", "s.db")
    assert (code, err) == (0, "5 rollouts, 9 spans, 4 rewards, 0 snapshots of resources in s.db\n")


@pytest.mark.parametrize(
    ("recorded", "message"),
    [
        (
            {"rollouts": [{"id": "a", "inptu": 1}]},
            "run.json: rollouts[0].inptu: unknown key. Did you mean 'input'?",
        ),
        ({"rollouts": [{"input": 1}]}, "run.json: rollouts[0].id: missing"),
        (
            {"rollouts": [{"id": "a"}, {"id": "a"}]},
            "run.json: rollouts[1]: rollout 'a' stands twice",
        ),
        (
            {"rollouts": [{"id": "a", "input": {}, "output": "x"}]},
            "'output' needs an 'input' that is the text",
        ),
        (
            {"rollouts": [{"id": "a", "input": "q", "output": "x", "calls": []}]},
            "output and calls say the same",
        ),
        (
            {"rewards": [{"rollout_id": "z", "value": 1}]},
            "a reward names the rollout 'z', which is neither in the file nor in the store",
        ),
        (
            {
                "rollouts": [{"id": "a", "input": "q", "output": "x"}],
                "rewards": [{"rollout_id": "a", "value": 1, "call": 1}],
            },
            "a reward is for call 1 of rollout 'a', which has 1 in this file",
        ),
        (
            {"rollouts": [{"id": "a", "resources_id": "rs-9"}]},
            "its resources 'rs-9' are not in the file",
        ),
        ({"resources": [{"name": "p", "type": "prompt"}]}, "expected one of prompt_template, llm"),
        ({"data": []}, "expected an object with 'rollouts', 'resources' or 'rewards'"),
        ([], "run.json: expected an object, got a list"),
        ({"rollouts": [{"id": "a", "input": nested(300)}]}, "run.json: cannot be read: JSON is"),
        (
            b'{"rollouts": [{"id": "a", "input": %s}]}' % (b"9" * 9000),
            "run.json: cannot be read: Exceeds the limit (4300 digits)",
        ),
        (b"\x1f\x8b\x08", "run.json: not text in UTF-8: invalid start byte (0x8b). Unpack"),
        (
            {
                "rollouts": [{"id": "a", "input": "q", "output": "x"}],
                "rewards": [{"rollout_id": "a", "value": math.nan}],
            },
            "run.json: rewards[0].value: ",
        ),
    ],
)
def test_a_wrong_file_is_refused_by_place_and_nothing_is_written(
    agl: Agl, recorded: Any, message: str
) -> None:
    write("run.json", "" if isinstance(recorded, bytes) else recorded)
    if isinstance(recorded, bytes):
        Path("run.json").write_bytes(recorded)
    code, _, err = agl("import", "run.json", "--path", "s.db")
    assert code == 2
    assert message in err
    assert asyncio.run(read_store()) == ([], {}, [])


def test_half_a_character_is_imported_as_agl_records_it(agl):
    half = {"rollouts": [{"id": "a", "input": "half: \ud83d, whole: \U0001f600", "output": "x"}]}
    assert agl("import", write("run.json", half), "--path", "s.db")[0] == 0
    assert asyncio.run(read_store())[0][0].input == "half: \ufffd, whole: \U0001f600"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs fifos")
def test_a_file_that_can_be_read_once_only_is_refused(agl):
    os.mkfifo("run.json")
    code, _, err = agl("import", "run.json", "--path", "s.db")
    assert (code, err) == (2, "agl: run.json: not a regular file, and it is read more than once\n")


async def next_one() -> tuple[Any, str | None]:
    """The latest resources, and which the next rollout gets."""
    store = SqliteLightningStore("s.db")
    latest, rollout = await store.get_latest_resources(), await store.enqueue_rollout("next")
    await store.close()
    return latest, rollout.resources_id


def test_imported_resources_are_nobodys(agl):
    assert agl("import", write("run.json", RECORDED), "--path", "s.db")[0] == 0
    assert asyncio.run(next_one()) == (None, None)


@pytest.mark.parametrize("takes_id", [False, True])
def test_an_import_changes_nothing_that_runs(agl, takes_id):
    async def live() -> Any:
        store = SqliteLightningStore("s.db")
        made = await store.add_resources({"llm": LLM(endpoint="http://good/v1", model="m")})
        await store.close()
        return made

    made = asyncio.run(live())
    resource = {"name": "llm", "type": "llm", "endpoint": "http://evil/v1", "model": "m"}
    resource |= {"id": made.resources_id} if takes_id else {}
    rollout = {"id": "a", "input": "q", "output": "x"}
    rollout |= {"resources_id": made.resources_id} if takes_id else {}
    file = write("run.json", {"resources": [resource], "rollouts": [rollout]})
    assert agl("import", file, "--path", "s.db")[0] == 0
    assert asyncio.run(next_one()) == (made, made.resources_id)
    file = write("run.json", {"resources": [{**resource, "model": "n"}]})
    code, _, err = agl("import", file, "--path", "s.db")
    assert code == (2 if takes_id else 0)
    assert ("are in the store with another content" in err) == takes_id


# --- OTLP


def otlp_json(spans: list[Span]) -> dict[str, Any]:
    """As OpenTelemetry's collector writes it: protobuf's JSON, but with ids in hex."""
    import base64

    from google.protobuf.json_format import MessageToDict
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    value = MessageToDict(ExportTraceServiceRequest.FromString(request_of(spans)))
    for group in value["resourceSpans"]:
        for span in (span for scope in group["scopeSpans"] for span in scope["spans"]):
            span["attributes"] = [
                a for a in span["attributes"] if not a["key"].startswith("agentlightning.span")
            ]
            for key in ("traceId", "spanId", "parentSpanId"):
                if key in span:
                    span[key] = base64.b64decode(span[key]).hex()
    return value


def traced(answer: str, value: float, *, error: str | None = None, start: float) -> list[Span]:
    root = Span.from_attributes(
        name="agent",
        attributes={},
        start_time=start,
        end_time=start + 9,
        status=TraceStatus(status_code="ERROR" if error else "OK", description=error),
    )
    inside = [call_span("2+2?", answer, IDS), reward_span(value)]
    return [
        *(
            span.model_copy(
                update={
                    "trace_id": root.trace_id,
                    "parent_id": root.span_id,
                    "start_time": start + n,
                    "end_time": start + n,
                }
            )
            for n, span in enumerate(inside, start=1)
        ),
        root,
    ]


def without_owner(request: dict[str, Any]) -> dict[str, Any]:
    for group in request["resourceSpans"]:
        for span in (span for scope in group["scopeSpans"] for span in scope["spans"]):
            span["attributes"] = [
                a for a in span["attributes"] if a["key"].split(".")[-1] not in OWNER
            ]
    return request


OWNER = ("rollout_id", "attempt_id")


def test_each_trace_of_an_otlp_file_is_a_rollout(agl):
    traces = [
        traced("4", 1.0, start=100.0),
        traced("5", 0.0, start=200.0),
        traced("?", 0.0, error="boom", start=300.0),
    ]
    # The spans of one trace stand on several lines, the root after its children.
    lines = [traces[0][:1], [*traces[1], *traces[2]], traces[0][1:]]
    text = "\n".join(json.dumps(without_owner(otlp_json(spans))) for spans in lines)
    Path("traces.jsonl").write_text(text)
    code, _, err = agl("import", "traces.jsonl", "--path", "s.db")
    assert (code, err) == (0, "3 rollouts, 9 spans, 3 rewards, 0 snapshots of resources in s.db\n")
    rollouts, spans, _ = asyncio.run(read_store())
    assert [r.status for r in rollouts] == ["succeeded", "succeeded", "failed"]
    assert [r.input for r in rollouts] == ["2+2?"] * 3
    assert rollouts[2].attempt.error.message == "boom"
    names = [span.name for span in spans[rollouts[0].rollout_id]]
    assert names == ["agent", MODEL_CALL_SPAN, AGL_ANNOTATION]
    assert pair_texts(exported(agl, "dpo")) == [("4", "5")]
    assert agl("import", "traces.jsonl", "--path", "s.db")[2].startswith(
        "0 rollouts (3 were there already), 0 spans"
    )


def test_spans_that_name_a_rollout_keep_to_it(agl):
    owner = {"rollout_id": "ro-elsewhere", "attempt_id": "at-1"}
    spans = [
        span.model_copy(update=owner) for n in (1, 2) for span in traced("4", 1.0, start=n * 10.0)
    ]
    Path("one.json").write_text(json.dumps(otlp_json(spans)))
    assert agl("import", "one.json", "--path", "s.db")[0] == 0
    rollouts, stored, _ = asyncio.run(read_store())
    assert len(rollouts) == 1
    assert rollouts[0].metadata["imported"]["id"] == "ro-elsewhere"
    assert len(stored[rollouts[0].rollout_id]) == 6


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"resourceMetrics": []}, "expected 'resourceSpans', got the keys ['resourceMetrics']"),
        (
            {"resourceSpans": [{"instrumentationLibrarySpans": []}]},
            "expected 'scopeSpans' in 'resourceSpans', got ['instrumentationLibrarySpans']",
        ),
    ],
)
def test_what_is_no_span_in_an_otlp_file_is_not_passed_over(agl, line, message):
    good = without_owner(otlp_json(traced("4", 1.0, start=1.0)))
    Path("traces.jsonl").write_text(f"{json.dumps(good)}\n{json.dumps(line)}\n")
    code, _, err = agl("import", "traces.jsonl", "--path", "s.db")
    assert (code, err) == (2, f"agl: traces.jsonl, line 2: not OTLP: {message}\n")
    assert asyncio.run(read_store()) == ([], {}, [])


def test_an_otlp_file_with_a_broken_span_is_refused_and_nothing_is_written(agl):
    request = without_owner(otlp_json(traced("4", 1.0, start=1.0)))
    request["resourceSpans"][1]["scopeSpans"][0]["spans"][0]["spanId"] = "12"
    Path("traces.jsonl").write_text(json.dumps(request))
    code, _, err = agl("import", "traces.jsonl", "--path", "s.db")
    assert code == 2
    assert "traces.jsonl, line 1: span" in err
    assert "needs a trace id of 16 bytes and a span id of 8" in err
    assert asyncio.run(read_store()) == ([], {}, [])


@pytest.mark.parametrize("unit", [1, 1e3, 1e6, 1e9])
def test_times_are_read_in_their_unit_and_the_start_is_kept(agl, unit):
    begun, ended = 1763800000.5 * unit, 1763800002 * unit
    call = {"messages": [{"role": "user", "content": "2+2?"}], "response": "4"}
    call |= {"start_time": begun, "end_time": ended}
    rollout = {"id": "a", "input": "2+2?", "calls": [call], "startTime": begun}
    assert agl("import", write("run.json", {"rollouts": [rollout]}), "--path", "s.db")[0] == 0

    (stored,), spans, _ = asyncio.run(read_store())
    (span,) = spans[stored.rollout_id]
    assert (span.start_time, span.end_time) == (1763800000.5, 1763800002)
    origin = stored.metadata["imported"]
    assert origin == {"id": "a", "from": "run.json", "start_time": 1763800000.5}


def test_whole_store_is_read_many_rollouts_at_a_time(agl, monkeypatch):
    make_store(*(("t", [[reward_span(1.0)]], "succeeded") for _ in range(20)))
    reads, read = [], FileStore._in_thread
    monkeypatch.setattr(FileStore, "_in_thread", lambda *given: [reads.append(1), read(*given)][1])
    assert agl("export", "--as", "store", "--path", "s.db", "-o", "all.jsonl")[0] == 0
    assert len(reads) < 10
    code, _, err = agl("export", "--as", "store", "--url", "http://127.0.0.1:9")
    assert code == 2
    assert "where the server's file lies" in err


def test_whole_store_comes_back_as_it_was(agl):
    async def fill() -> None:
        store = SqliteLightningStore("s.db")
        for prompt in ("a", "b"):
            await store.update_resources("rs-1", {"p": PromptTemplate(template=prompt)})
        latest = await store.add_resources({"p": PromptTemplate(template="c")})
        config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
        rollout = await store.enqueue_rollout({"q": 1}, config=config, metadata={"run": "r"})
        assert rollout.resources_id == latest.resources_id
        error = Failure(boundary="agent", type="E", message="no")
        for reward in (0.0, 1.0):
            [claimed] = await store.dequeue_many_rollouts(worker_id="w")
            owner = {"rollout_id": rollout.rollout_id, "attempt_id": claimed.attempt.attempt_id}
            await store.add_span(reward_span(reward).changed(**owner))
            await store.update_attempt(*owner.values(), status="failed", error=error)
        cancelled = await store.enqueue_rollout("c")
        await store.update_rollout(cancelled.rollout_id, status="cancelled")
        await store.enqueue_rollout("queued", key="k")
        documents = [
            Document(kind="ledger", key="a", body=[1], rollout_id=rollout.rollout_id),
            Document(kind="run", key="r", body={"x": None}, version=3),
        ]
        await store.put_documents(documents)
        await store.close()

    asyncio.run(fill())
    assert agl("export", "--as", "store", "--path", "s.db", "-o", "all.jsonl")[0] == 0
    code, _, err = agl("import", "all.jsonl", "--path", "new.db")
    assert (code, err) == (
        0, "3 rollouts, 2 spans, 0 rewards, 2 snapshots of resources in new.db\n"
    )  # fmt: skip
    assert agl("export", "--as", "store", "--path", "new.db", "-o", "again.jsonl")[0] == 0
    whole = Path("all.jsonl").read_text()
    assert Path("again.jsonl").read_text() == whole
    assert len(whole.splitlines()) == 1 + 2 + 3 + 2

    async def use() -> None:
        store = SqliteLightningStore("new.db")
        assert (await store.enqueue_rollout("queued", key="k")).start_time < time.time()
        assert (await store.query_rollouts()).total == 3
        await store.enqueue_rollout("new")
        assert [(await store.dequeue_rollout()).input for _ in range(2)] == ["queued", "new"]  # type: ignore
        await store.close()

    asyncio.run(use())
    code, _, err = agl("import", "all.jsonl", "--path", "new.db")
    assert code == 2
    assert "goes into an empty one" in err
