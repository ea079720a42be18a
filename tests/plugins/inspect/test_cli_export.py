"""``agl export`` out of a real store, and ``agl import`` into one."""

import contextlib
import json
import math
import os
import re
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from tests.otlp_requests import request_of
from tests.run_project import refuses, succeeds

from agl.semconv import AGL_ANNOTATION, MODEL_CALL_SPAN, ModelCallAttributes as Key
from agl.types import LLM, Document, Failure, PromptTemplate, RolloutConfig, Span, TraceStatus
from agl_inspect.exchange.reading import CANARY
from agl_sqlite import SqliteLightningStore
from agl_views.tables.file_store import FileStore

from .traces import call_of, filled, ids_of, reward_span

pytestmark = pytest.mark.usefixtures("here")
HERE = ("--path", "s.db")


def exported(agl, form: str, *arguments: str) -> list[dict[str, Any]]:
    found = succeeds(agl, "export", "--as", form, *HERE, *arguments).out
    return [json.loads(line) for line in found.splitlines()]


def imported(agl, file: str, code: int = 0) -> str:
    """What an import of a file says."""
    done, out, err = agl("import", file, *HERE)
    assert (done, out) == (code, ""), err
    return re.sub(r"(?m)^\d+ rollouts, \d+ spans\n", "", err)  # progress, where it is slow


Traced = tuple[list[list[Span]], str]


def trace(*attempts: list[Span], status: str = "succeeded") -> Traced:
    """A rollout: the spans of each attempt, and the last's status."""
    return [*attempts], status


def make_store(*rollouts: Traced) -> list[str]:
    async def fill(store: SqliteLightningStore) -> list[str]:
        ids = []
        for attempts, status in rollouts:
            rollout = await store.start_rollout(input="t", mode="train")
            for number, spans in enumerate(attempts):
                if number:
                    await store.update_attempt(rollout.rollout_id, "latest", status="running")
                    rollout = await store.start_attempt(rollout.rollout_id)
                owner = ids_of(rollout)
                await store.add_many_spans([span.model_copy(update=owner) for span in spans])
            await store.update_attempt(rollout.rollout_id, "latest", status=status)  # type: ignore
            ids.append(rollout.rollout_id)
        return ids

    return filled(fill)


IDS = ([1, 2, 3], [4, 5])


def test_rows_and_triplets_have_tokens_and_samples_and_messages_what_was_said(agl):
    call = call_of("q", "a", *IDS)
    (rollout_id,) = make_store(trace([call, reward_span(0.5)]))
    (row,) = exported(agl, "rows")
    assert row["token_ids"] == [1, 2, 3, 4, 5]
    assert row["loss_mask"] == [0, 0, 0, 1, 1]
    assert row["logprobs"] == [0.0, 0.0, 0.0, -0.5, -0.5]
    assert (row["reward"], row["rewards"]) == (0.5, [0.5])
    assert row["provenance"]["rollout_id"] == rollout_id
    assert row["provenance"]["span_ids"] == [call.span_id]
    (triplet,) = exported(agl, "triplets")
    assert triplet["prompt"]["token_ids"] == [1, 2, 3]
    assert triplet["response"]["token_ids"] == [4, 5]
    assert triplet["provenance"]["span_ids"] == [call.span_id]
    (sample,) = exported(agl, "sft")
    assert sample["prompt"] == [{"role": "user", "content": "q"}]
    assert sample["completion"] == [{"role": "assistant", "content": "a"}]
    (whole,) = exported(agl, "messages")
    assert whole["messages"] == sample["prompt"] + sample["completion"]
    assert whole["reward"] == 0.5


def test_a_rollout_with_a_damaged_span_is_left_out_and_counted(agl):
    damaged = [call_of("its question", "a", *IDS), reward_span(1.0)]
    whole = [call_of("another", "a", *IDS), reward_span(0.5)]
    make_store(trace(damaged), trace(whole))
    with contextlib.closing(sqlite3.connect("s.db")) as file, file:
        file.execute("UPDATE span SET body = '{' WHERE k = 1")
    code, out, err = agl("export", "--as", "rows", *HERE)
    assert (code, [json.loads(line)["reward"] for line in out.splitlines()]) == (0, [0.5])
    assert "calls left out: 1 malformed" in err


def test_what_a_judge_was_asked_is_no_sample(agl):
    one = trace([call_of("q", "a", *IDS), reward_span(0.5)])
    (judged, judge) = make_store(one, one)

    filled(lambda store: store.update_rollout(judge, metadata={"judges": [judged]}))
    for form in ("rows", "sft", "messages"):
        (sample,) = exported(agl, form)
        assert sample["provenance"]["rollout_id"] == judged


def test_only_the_attempt_that_succeeded_is_exported_and_the_rest_is_counted(agl):
    first, second = call_of("q", "first", *IDS), call_of("q", "second", *IDS)
    error = call_of("q", "x", **{Key.ERROR.value: "500"})
    make_store(
        trace([first], [second, error, reward_span(1.0)]),
        trace([call_of("q", "lost", *IDS)], status="failed"),
    )
    for form in ("rows", "sft", "messages", "triplets"):
        _, out, err = agl("export", "--as", form, *HERE)
        (record,) = [json.loads(line) for line in out.splitlines()]
        assert record["provenance"]["span_ids"] == [second.span_id], form
        for reason in ("1 superseded_attempt", "1 model_error", "1 failed_attempt"):
            assert reason in err, form


def test_low_rewards_other_agents_and_other_modes_can_be_left_out(agl):
    high = call_of("q", "high", **{Key.AGENT_NAME.value: "solver"})
    make_store(answered("low", 0.1), trace([high, reward_span(0.9)]), answered("none", None))
    for option in (("--min-reward", "0.5"), ("--agent-match", "^solver$")):
        kept = exported(agl, "sft", *option)
        assert [record["completion"][0]["content"] for record in kept] == ["high"]
    assert exported(agl, "sft", "--mode", "val") == []


def pair_texts(pairs: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(pair["chosen"][0]["content"], pair["rejected"][0]["content"]) for pair in pairs]


def answered(answer: str, reward: float | None) -> Traced:
    spans = [call_of("q", answer)]
    return trace(spans if reward is None else [*spans, reward_span(reward)])


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
    first = [call_of("q", "same")]
    ways = {"good": 1.0, "bad": 0.0}
    make_store(*(trace([*first, call_of("q2", said), reward_span(r)]) for said, r in ways.items()))
    assert pair_texts(exported(agl, "dpo")) == [("good", "bad")]


@pytest.mark.parametrize(
    ("rollouts", "reason"),
    [
        ([answered("a", 1.0)], "no_sibling_with_the_same_prompt"),
        ([answered("a", 1.0), answered("b", 1.0)], "same_reward_or_same_answer"),
        ([answered("a", 1.0), answered("a", 0.0)], "same_reward_or_same_answer"),
        ([answered("a", 1.0), answered("b", None)], "no_reward"),
        ([trace([reward_span(1.0)])], "no_usable_call"),
    ],
)
def test_a_task_without_a_pair_says_why(agl, rollouts, reason):
    make_store(*rollouts)
    code, out, err = agl("export", "--as", "dpo", *HERE)
    assert (code, out) == (0, "")
    assert f"tasks that gave none: 1 {reason}" in err


def test_parquet_holds_what_jsonl_holds(agl):
    parquet = pytest.importorskip("pyarrow.parquet")
    look = {"name": "look", "arguments": "{}"}
    tool_call = {"id": "c1", "type": "function", "function": look}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "q"}], "mood": "curious"},
        {"role": "assistant", "content": None, "tool_calls": [tool_call]},
        {"role": "tool", "content": "a cat", "tool_call_id": "c1"},
    ]
    call = call_of("q", "a", *IDS, **{Key.INPUT_MESSAGES.value: json.dumps(messages)})
    make_store(trace([call, reward_span(1.0)]), answered("b", 0.5))
    for form in ("rows", "triplets", "messages", "sft", "dpo"):
        lines = exported(agl, form)
        succeeds(agl, "export", "--as", form, *HERE, "-o", f"{form}.parquet")
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
    assert succeeds(agl, "export", "--as", "sft", *HERE, "-o", "sft.jsonl").out == ""
    assert json.loads((tmp_path / "sft.jsonl").read_text())["reward"] == 1.0
    assert not list(tmp_path.glob("*.part"))
    said = "agl: sft.csv: expected a name that ends in .jsonl or .parquet\n"
    assert agl("export", "--as", "sft", *HERE, "-o", "sft.csv") == (2, "", said)
    said = "agl: --min-reward has no meaning for dpo; use --min-gap\n"
    assert agl("export", "--as", "dpo", *HERE, "--min-reward", "1") == (2, "", said)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


TURNS = [("user", "u"), ("assistant", "x"), ("user", "v"), ("assistant", "y")]
TOKENS = {"promptTokenIds": [1], "responseTokenIds": [2], "responseLogprobs": [-0.1]}
CALL = {"messages": [{"role": "user", "content": "u"}], "response": "w", **TOKENS}
RECORDED = {
    "resources": [{"name": "main_prompt", "type": "prompt_template", "template": "Say {q}"}],
    "rollouts": [
        {"id": "a", "input": "2+2?", "output": "4", "mode": "train"},
        {"rollout_id": "b", "input": "2+2?", "output": "5", "mode": "train"},
        {"id": "c", "input": {"q": 1}, "messages": [{"role": r, "content": c} for r, c in TURNS]},
        {"id": "d", "input": "tokens", "calls": [CALL]},
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


def read_store() -> tuple[list[Any], dict[str, list[Span]], list[Any]]:
    async def read(store: SqliteLightningStore) -> Any:
        rollouts = list(await store.query_rollouts())
        spans = {r.rollout_id: list(await store.query_spans(r.rollout_id)) for r in rollouts}
        return rollouts, spans, list(await store.query_resources())

    return filled(read)


def test_recorded_rollouts_become_learning_data(agl):
    said = imported(agl, write("run.json", RECORDED))
    assert said == "5 rollouts, 9 spans, 4 rewards, 1 snapshots of resources in s.db\n"
    rollouts, spans, resources = once = read_store()
    none = "0 rollouts (5 were there already), 0 spans, 0 rewards, 0 snapshots"
    assert imported(agl, "run.json").startswith(none)
    assert read_store() == once
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
    assert next_one() == (None, None), "imported resources are nobody's"


def test_an_interrupted_import_is_finished_by_the_next(agl):
    about = {"imported": {"id": "a", "from": "run.json"}}
    filled(lambda store: store.start_rollout("2+2?", metadata=about))
    imported(agl, write("run.json", RECORDED))
    rollouts, spans, _ = read_store()
    assert len(rollouts) == 5
    assert rollouts[0].status == "succeeded"
    assert len(spans[rollouts[0].rollout_id]) == 2


def test_rewards_can_be_given_later_to_rollouts_of_the_store(agl):
    (rollout_id,) = make_store(answered("a", None))
    rewards = {"rewards": [{"rollout_id": rollout_id, "value": 0.75}]}
    imported(agl, write("labels.json", rewards))
    (sample,) = exported(agl, "sft")
    assert sample["reward"] == 0.75


def test_lines_are_read_one_by_one_and_rewards_may_come_last(agl):
    lines = [{"rollout": r} for r in RECORDED["rollouts"]]
    lines += [{"reward": r} for r in RECORDED["rewards"]]
    Path("run.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    said = "5 rollouts, 9 spans, 4 rewards, 0 snapshots of resources in s.db\n"
    assert imported(agl, "run.jsonl") == said


ANSWER = {"id": "a", "input": "q", "output": "x"}
PROMPT = {"resources": [{"name": "p", "type": "prompt"}]}
DIGITS = b'{"rollouts": [{"id": "a", "input": %s}]}' % (b"9" * 9000)


def of_a(**reward: Any) -> dict[str, Any]:
    return {"rollouts": [ANSWER], "rewards": [{"rollout_id": "a", "value": 1, **reward}]}


@pytest.mark.parametrize(
    ("recorded", "message"),
    [
        ([{"id": "a", "inptu": 1}], "rollouts[0].inptu: unknown key. Did you mean 'input'?"),
        ([{"input": 1}], "run.json: rollouts[0].id: missing"),
        ([{"id": "a"}, {"id": "a"}], "run.json: rollouts[1]: rollout 'a' stands twice"),
        ([{**ANSWER, "input": {}}], "'output' needs an 'input' that is the text"),
        ([{**ANSWER, "calls": []}], "output and calls say the same"),
        (of_a(rollout_id="z"), "names the rollout 'z', which is neither in the file nor in the"),
        (of_a(call=1), "a reward is for call 1 of rollout 'a', which has 1 in this file"),
        ([{"id": "a", "resources_id": "rs-9"}], "its resources 'rs-9' are not in the file"),
        (PROMPT, "resources[0].p.type: unknown resource 'prompt'; one of llm, proxy_llm"),
        ({"data": []}, "expected an object with 'rollouts', 'resources' or 'rewards'"),
        (b"[]", "run.json: expected an object, got a list"),
        ([{"id": "a", "input": nested(300)}], "run.json: cannot be read: JSON is"),
        (DIGITS, "run.json: cannot be read: Exceeds the limit (4300 digits)"),
        (b"\x1f\x8b\x08", "run.json: not text in UTF-8: invalid start byte (0x8b). Unpack"),
        (of_a(value=math.nan), "run.json: rewards[0].value: "),
    ],
)
def test_a_wrong_file_is_refused_by_place_and_nothing_is_written(agl, recorded, message):
    if isinstance(recorded, bytes):
        Path("run.json").write_bytes(recorded)
    else:
        write("run.json", {"rollouts": recorded} if isinstance(recorded, list) else recorded)
    assert message in imported(agl, "run.json", 2)
    assert read_store() == ([], {}, [])


def test_half_a_character_is_imported_as_agl_records_it(agl):
    half = {"rollouts": [{"id": "a", "input": "half: \ud83d, whole: \U0001f600", "output": "x"}]}
    imported(agl, write("run.json", half))
    assert read_store()[0][0].input == "half: \ufffd, whole: \U0001f600"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs fifos")
def test_a_file_that_can_be_read_once_only_is_refused(agl):
    os.mkfifo("run.json")
    said = "agl: run.json: not a regular file, and it is read more than once\n"
    assert imported(agl, "run.json", 2) == said


def next_one() -> tuple[Any, str | None]:
    """The latest resources, and which the next rollout gets."""

    async def look(store: SqliteLightningStore) -> Any:
        latest = await store.get_latest_resources()
        return latest, (await store.enqueue_rollout("next")).resources_id

    return filled(look)


@pytest.mark.parametrize("takes_id", [False, True])
def test_an_import_changes_nothing_that_runs(agl, takes_id):
    good = {"llm": LLM(endpoint="http://good/v1", model="m")}
    made = filled(lambda store: store.add_resources(good))
    resource = {"name": "llm", "type": "llm", "endpoint": "http://evil/v1", "model": "m"}
    resource |= {"id": made.resources_id} if takes_id else {}
    rollout = ANSWER | ({"resources_id": made.resources_id} if takes_id else {})
    imported(agl, write("run.json", {"resources": [resource], "rollouts": [rollout]}))
    assert next_one() == (made, made.resources_id)
    again = {"resources": [{**resource, "model": "n"}]}
    said = imported(agl, write("run.json", again), 2 if takes_id else 0)
    assert ("are in the store with another content" in said) == takes_id


OWNER = ("rollout_id", "attempt_id")


def otlp_json(spans: list[Span], *left_out: str) -> dict[str, Any]:
    """As OpenTelemetry's collector writes it: protobuf's JSON, but with ids in hex."""
    import base64

    from google.protobuf.json_format import MessageToDict
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    value = MessageToDict(ExportTraceServiceRequest.FromString(request_of(spans)))
    for group in value["resourceSpans"]:
        for span in (span for scope in group["scopeSpans"] for span in scope["spans"]):
            span["attributes"] = [
                one
                for one in span["attributes"]
                if not one["key"].startswith("agentlightning.span")
                and one["key"].split(".")[-1] not in left_out
            ]
            for key in ("traceId", "spanId", "parentSpanId"):
                if key in span:
                    span[key] = base64.b64decode(span[key]).hex()
    return value


def traced(answer: str, value: float, *, error: str | None = None, start: float) -> list[Span]:
    status = TraceStatus(status_code="ERROR" if error else "OK", description=error)
    about = {"start_time": start, "end_time": start + 9, "status": status}
    root = Span.from_attributes(name="agent", attributes={}, **about)
    inside = [call_of("2+2?", answer, *IDS), reward_span(value)]
    of = {"trace_id": root.trace_id, "parent_id": root.span_id}
    times = [dict.fromkeys(("start_time", "end_time"), start + n) for n in (1, 2)]
    below = [one.model_copy(update={**of, **at}) for one, at in zip(inside, times, strict=True)]
    return [*below, root]


def test_each_trace_of_an_otlp_file_is_a_rollout(agl):
    traces = [traced("4", 1.0, start=100.0), traced("5", 0.0, start=200.0)]
    traces.append(traced("?", 0.0, error="boom", start=300.0))
    # The spans of one trace stand on several lines, the root after its children.
    lines = [traces[0][:1], [*traces[1], *traces[2]], traces[0][1:]]
    text = "\n".join(json.dumps(otlp_json(spans, *OWNER)) for spans in lines)
    Path("traces.jsonl").write_text(text)
    said = imported(agl, "traces.jsonl")
    assert said == "3 rollouts, 9 spans, 3 rewards, 0 snapshots of resources in s.db\n"
    rollouts, spans, _ = read_store()
    assert [r.status for r in rollouts] == ["succeeded", "succeeded", "failed"]
    assert [r.input for r in rollouts] == ["2+2?"] * 3
    assert rollouts[2].attempt.error.message == "boom"
    names = [span.name for span in spans[rollouts[0].rollout_id]]
    assert names == ["agent", MODEL_CALL_SPAN, AGL_ANNOTATION]
    assert pair_texts(exported(agl, "dpo")) == [("4", "5")]
    assert imported(agl, "traces.jsonl").startswith("0 rollouts (3 were there already), 0 spans")


def test_spans_that_name_a_rollout_keep_to_it(agl):
    owner = {"rollout_id": "ro-elsewhere", "attempt_id": "at-1"}
    spans = [
        span.model_copy(update=owner) for n in (1, 2) for span in traced("4", 1.0, start=n * 10.0)
    ]
    Path("one.json").write_text(json.dumps(otlp_json(spans)))
    imported(agl, "one.json")
    rollouts, stored, _ = read_store()
    assert len(rollouts) == 1
    assert rollouts[0].metadata["imported"]["id"] == "ro-elsewhere"
    assert len(stored[rollouts[0].rollout_id]) == 6


OLD, BROKEN = {"instrumentationLibrarySpans": []}, {"traceId": "a" * 32, "spanId": "12"}
NO_IDS = "needs a trace id of 16 bytes and a span id of 8"
NO_SPANS = "not OTLP: expected 'resourceSpans', got the keys ['resourceMetrics']\n"
OLD_ONES = (
    "not OTLP: expected 'scopeSpans' in 'resourceSpans', got ['instrumentationLibrarySpans']\n"
)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"resourceMetrics": []}, NO_SPANS),
        ({"resourceSpans": [OLD]}, OLD_ONES),
        ({"resourceSpans": [{"scopeSpans": [{"spans": [BROKEN]}]}]}, NO_IDS),
    ],
)
def test_what_is_no_span_in_an_otlp_file_is_not_passed_over(agl, line, message):
    good = otlp_json(traced("4", 1.0, start=1.0), *OWNER)
    Path("traces.jsonl").write_text(f"{json.dumps(good)}\n{json.dumps(line)}\n")
    said = imported(agl, "traces.jsonl", 2)
    assert said.startswith("agl: traces.jsonl, line 2: ")
    assert message in said
    assert read_store() == ([], {}, [])


@pytest.mark.parametrize("unit", [1, 1e3, 1e6, 1e9])
def test_times_are_read_in_their_unit_and_the_start_is_kept(agl, unit):
    begun, ended = 1763800000.5 * unit, 1763800002 * unit
    call = {"messages": [{"role": "user", "content": "2+2?"}], "response": "4"}
    call |= {"start_time": begun, "end_time": ended}
    rollout = {"id": "a", "input": "2+2?", "calls": [call], "startTime": begun}
    imported(agl, write("run.json", {"rollouts": [rollout]}))

    (stored,), spans, _ = read_store()
    (span,) = spans[stored.rollout_id]
    assert (span.start_time, span.end_time) == (1763800000.5, 1763800002)
    origin = stored.metadata["imported"]
    assert len(origin.pop("digest")) == 16
    assert origin == {"id": "a", "from": "run.json", "start_time": 1763800000.5}


def test_whole_store_is_read_many_rollouts_at_a_time(agl, monkeypatch):
    make_store(*(trace([reward_span(1.0)]) for _ in range(20)))
    reads, read = [], FileStore._read
    monkeypatch.setattr(FileStore, "_read", lambda *given: [reads.append(1), read(*given)][1])
    assert agl("export", "--as", "store", *HERE, "-o", "all.jsonl")[0] == 0
    assert len(reads) < 10
    url = ("--url", "http://127.0.0.1:9")
    refuses(agl, "where the server's file lies", "export", "--as", "store", *url)


def test_whole_store_comes_back_as_it_was(agl):
    async def fill(store: SqliteLightningStore) -> None:
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

    filled(fill)
    succeeds(agl, "export", "--as", "store", *HERE, "-o", "all.jsonl")
    said = "3 rollouts, 2 spans, 0 rewards, 2 snapshots of resources in new.db\n"
    assert succeeds(agl, "import", "all.jsonl", "--path", "new.db").err == said
    succeeds(agl, "export", "--as", "store", "--path", "new.db", "-o", "again.jsonl")
    whole = Path("all.jsonl").read_text()
    assert Path("again.jsonl").read_text() == whole
    assert len(whole.splitlines()) == 1 + 2 + 3 + 2

    async def use(store: SqliteLightningStore) -> None:
        assert (await store.enqueue_rollout("queued", key="k")).start_time < time.time()
        assert (await store.query_rollouts()).total == 3
        await store.enqueue_rollout("new")
        assert [(await store.dequeue_rollout()).input for _ in range(2)] == ["queued", "new"]  # type: ignore

    filled(use, "new.db")
    refuses(agl, "goes into an empty one", "import", "all.jsonl", "--path", "new.db")


def test_every_form_counts_a_canary_that_was_cancelled_as_left_out(agl):
    async def fill(store: SqliteLightningStore) -> None:
        one = await store.start_rollout(input="t", mode="test", metadata={CANARY: "empty"})
        await store.update_rollout(one.rollout_id, status="cancelled")

    filled(fill)
    for form in ("rows", "sft", "dpo"):
        said = succeeds(agl, "export", "--as", form, *HERE).err
        assert said.endswith("rollouts of judges and canaries left out: 1\n")
