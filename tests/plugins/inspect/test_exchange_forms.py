"""Files of other programs, read and written: one conversation comes out of each alike."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.run_project import refuses, succeeds

from agl.emitter import get_rewards_from_span

from .test_cli_export import write as written
from .traces import filled

HERE = Path(__file__).parent
FORMS = json.loads((HERE / "forms.json").read_text())
FUNCTION = {"name": "look", "arguments": '{"room": "kitchen"}'}
CALL = {"id": "call_1", "type": "function", "function": FUNCTION}
SAID = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Where is it?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "a key"},
    {"role": "assistant", "content": "In the kitchen."},
]
REWARDED = ("atif", "messages", "langfuse", "mlflow")


pytestmark = pytest.mark.usefixtures("here")


def exported(agl, form: str) -> list[dict[str, Any]]:
    found = succeeds(agl, "export", "--to", form, "--path", "s.db").out
    return [json.loads(line) for line in found.splitlines()]


@pytest.mark.parametrize("form", [form for form in FORMS if form != "//"])
def test_one_conversation_is_read_from_each_form(agl, form):
    arguments = ["import", "--from", form.split()[0], written("run.json", FORMS[form])]
    arguments += ["--reward", "correct"] * (form in ("langfuse", "mlflow"))
    code, _, err = agl(*arguments, "--path", "s.db")
    assert (code, err.count("\n")) == (0, 1 + (form == "langfuse")), err
    assert err.startswith("1 rollouts, ")
    assert f" spans, {int(form in REWARDED)} rewards, " in err
    records = exported(agl, "messages")
    assert [one["messages"] for one in records] == [SAID]
    assert {one["reward"] for one in records} == {1.0 if form in REWARDED else None}
    assert [tool["function"]["name"] for tool in records[-1]["tools"]] == ["look"]
    assert agl(*arguments, "--path", "s.db")[2].startswith("0 rollouts (1 were there already)")


def test_a_conversation_is_one_line_of_messages_and_comes_back_as_it_was(agl):
    branch = [*SAID[:3], {**SAID[3], "content": "nothing"}, {"role": "assistant", "content": "?"}]
    lines = [{"messages": m, "reward": 1.0} for m in (SAID[:3], SAID, branch)]
    calls = [{"messages": m[:-1], "response": m[-1]} for m in (SAID, SAID[:3], branch)]
    rollout = {"id": "a", "input": "q", "calls": calls}  # the longer call ended first
    own = {"rollouts": [rollout], "rewards": [{"rollout_id": "a", "value": 1}]}
    agl("import", written("own.json", own), "--path", "s.db")
    out = exported(agl, "messages")
    assert [one["messages"] for one in out] == [SAID, branch]
    assert [len(one["provenance"]["span_ids"]) for one in out] == [2, 1]
    Path("s.db").unlink()
    Path("run.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    _, _, err = agl("import", "--from", "messages", "run.jsonl", "--path", "s.db")
    said = "1 conversations are beginnings of others, so that their calls are in the store twice: "
    assert f"{said}run.jsonl, line 1 of run.jsonl, line 3\n" in err


def conversation(question: str, answer: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def test_conversations_of_files_of_one_name_are_apart_and_a_file_adds_nothing_twice(agl):
    sums, towns = conversation("1+1?", "2"), conversation("Capital of France?", "Rome")
    for team, said, reward in (("a", [sums, sums], 1.0), ("b", [towns], 0.0)):
        Path(team).mkdir()
        lines = [json.dumps({"messages": one, "reward": reward}) for one in said]
        Path(team, "good.jsonl").write_text("\n".join(lines))
    from_messages = ("import", "--from", "messages", "--path", "s.db")
    assert agl(*from_messages, "a/good.jsonl")[2].startswith("2 rollouts, 4 spans, 2 rewards")
    assert agl(*from_messages, "b/good.jsonl")[2].startswith("1 rollouts, 2 spans, 1 rewards")
    out = [(one["messages"], one["reward"]) for one in exported(agl, "messages")]
    assert out == [(sums, 1.0), (sums, 1.0), (towns, 0.0)]
    none = "0 rollouts (2 were there already), 0 spans, 0 rewards"
    assert agl(*from_messages, "a/good.jsonl")[2].startswith(none)
    written("labelled.jsonl", {"messages": towns, "reward": 0.5})
    assert " 1 rewards" in agl(*from_messages, "labelled.jsonl")[2]


@pytest.mark.parametrize("form", ["atif", "messages", "own"])
def test_a_known_id_with_another_content_is_refused_by_name(agl, form):
    def file(name: str, answer: str, reward: float) -> list[str]:
        said = conversation("1+1?", answer)
        step = {"source": "agent", "message": answer}
        value = {
            "atif": form_with("atif", steps=[step], extra={"reward": reward}),
            "messages": {"id": "se-2", "messages": said, "reward": reward},
            "own": {
                "rollouts": [{"id": "se-2", "input": "1+1?", "messages": said}],
                "rewards": [{"rollout_id": "se-2", "value": reward}],
            },
        }[form]
        return [*([] if form == "own" else ["--from", form]), written(name, value)]

    to = ("--path", "s.db")
    assert agl("import", *file("a.json", "2", 1.0), *to)[0] == 0
    before = exported(agl, "messages")
    other = file("b.json", "5", 0.0)
    said = "rollout 'se-2' is in the store with another content, as 'ro-"
    refuses(agl, said, "import", *other, *to)
    assert exported(agl, "messages") == before
    # The same content is the same rollout, with a reward that it did not have.
    _, _, err = agl("import", *file("a.json", "2", 0.5), *to)
    assert err.startswith("0 rollouts (1 were there already), 0 spans, 1 rewards")
    files = [*file("c.json", "2", 1.0), file("d.json", "5", 0.0)[-1]]
    assert "d.json" in agl("import", *files, "--path", "both.db")[2]


def test_a_trajectory_is_written_by_atifs_schema_and_read_again(agl):
    jsonschema = pytest.importorskip("jsonschema_rs")
    agl("import", "--from", "atif", written("run.json", FORMS["atif"]), "--path", "s.db")
    (trajectory,) = exported(agl, "atif")
    jsonschema.validate(json.loads((HERE / "atif-schema.json").read_text()), trajectory)
    assert [step["step_id"] for step in trajectory["steps"]] == [1, 2, 3, 4]
    keys = ("source", "message", "tool_calls", "observation", "metrics")
    written_, read_ = (
        [{key: step.get(key) for key in keys} for step in one["steps"]]
        for one in (trajectory, FORMS["atif"])
    )
    assert written_ == read_
    assert trajectory["extra"]["reward"] == 1.0
    rows = [(row["token_ids"], row["loss_mask"]) for row in exported(agl, "rows")]
    Path("s.db").rename("first.db")
    agl("import", "--from", "atif", written("again.json", trajectory), "--path", "s.db")
    assert [(row["token_ids"], row["loss_mask"]) for row in exported(agl, "rows")] == rows


def calling(**call: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [call]}


CUSTOM = calling(id="c", type="custom", custom={"name": "py", "input": "print(1)"})
CUSTOM_OF_ATIF = {"tool_call_id": "c", "function_name": "py", "arguments": {}}
CUSTOM_OF_ATIF |= {"extra": {"arguments": "print(1)"}}
NO_ID = calling(type="function", function={"name": "look", "arguments": {"a": 1}})
NO_ID_OF_ATIF = {"tool_call_id": "call-0-0", "function_name": "look", "arguments": {"a": 1}}
IMAGE = {"type": "image_url", "image_url": "http://x/y.png"}
IMAGE_OF_ATIF = {"type": "image", "source": {"media_type": "image/png", "path": "http://x/y.png"}}


@pytest.mark.parametrize(
    ("said", "key", "written_as"),
    [
        (CUSTOM, "tool_calls", [CUSTOM_OF_ATIF]),
        (NO_ID, "tool_calls", [NO_ID_OF_ATIF]),
        ({"role": "user", "content": [IMAGE]}, "message", [IMAGE_OF_ATIF]),
        ({"role": "tool", "tool_call_id": "c"}, "observation", {"results": [{}]}),
        ({"role": "user", "content": ["odd"]}, None, None),
    ],
)
def test_odd_messages_are_written_as_atif_or_left_out_by_name(agl, said, key, written_as):
    odd = [said, {"role": "user", "content": "?"}, {"role": "assistant", "content": "odd"}]
    rollouts = [{"id": "a", "messages": odd}, {"id": "b", "messages": SAID}]
    agl("import", written("own.json", {"rollouts": rollouts}), "--path", "s.db")
    _, out, err = succeeds(agl, "export", "--to", "atif", "--path", "s.db")
    trajectories = [json.loads(line)["steps"] for line in out.splitlines()]
    if key is None:
        assert len(trajectories) == 1
        assert "1 malformed_message (rollout ro-" in err
    else:
        assert trajectories[0][0][key] == written_as


FIRST, SECOND = FORMS["langfuse"]["observations"]


def trace(number: int, *scores: dict[str, Any], session: str = "se-1") -> dict[str, Any]:
    """One of Langfuse, with one call whose id is that of all others."""
    call = {**(FIRST if number % 2 else SECOND), "traceId": f"tr-{number}", "id": "ob"}
    found = {"id": f"tr-{number}", "sessionId": session, "observations": [call]}
    return {**found, "scores": [{"name": "good", "dataType": "NUMERIC", **one} for one in scores]}


def stored() -> dict[str, tuple[int, list[float]]]:
    """Name of each rollout -> its calls and rewards."""

    async def read(store: Any) -> dict[str, tuple[int, list[float]]]:
        found = {}
        for one in await store.query_rollouts():
            spans = await store.query_spans(one.rollout_id)
            given = [reward.value for span in spans for reward in get_rewards_from_span(span)]
            found[one.metadata["imported"]["id"]] = len(spans) - len(given), given
        return found

    return filled(read)


OF_SESSION = {"value": 0.5, "sessionId": "se-1"}


@pytest.mark.parametrize(
    ("traces", "rollouts"),
    [
        ([trace(1), trace(2), trace(3, session="se-2")], {"se-1": (2, []), "se-2": (1, [])}),
        # What a trace got is paid to its calls only; what one of its calls got is linked to it.
        (
            [trace(1, {"value": 1}), trace(2, {"value": 0}), trace(3), trace(4)],
            {"tr-1": (1, [1.0]), "tr-2": (1, [0.0]), "se-1": (2, [])},
        ),
        ([trace(1, {"value": 1, "observationId": "ob"}), trace(2)], {"se-1": (2, [1.0])}),
        ([trace(1, {"value": 1}), trace(2, OF_SESSION)], {"se-1": (2, [1.0, 0.5])}),
        ([trace(1, {"value": 1})], {"se-1": (1, [1.0])}),
    ],
)
def test_a_score_pays_what_it_is_about(agl, traces, rollouts):
    arguments = ("import", "--from", "langfuse", written("run.json", traces), "--path", "s.db")
    err = succeeds(agl, *arguments).err
    assert stored() == rollouts
    rewards = sum(len(given) for _, given in rollouts.values())
    assert err.startswith(f"{len(rollouts)} rollouts, {len(traces) + rewards} spans, {rewards} rew")
    none = f"0 rollouts ({len(rollouts)} were there already), 0 spans"
    assert agl(*arguments)[2].startswith(none)


OF_TEXT, OF_NUMBER = ({"name": "kind", "value": v, "dataType": "CATEGORICAL"} for v in ("x", 2))


@pytest.mark.parametrize(
    ("scores", "reward", "taken", "said"),
    [
        ([{"value": 1}, OF_TEXT], None, [1.0], "'kind'"),
        ([{"value": 1}, OF_NUMBER], None, [1.0], "'kind'"),
        ([{"value": 1, "dataType": "BOOLEAN"}], None, [], "1 'good' (BOOLEAN). --reward NAME"),
        ([{"value": True, "dataType": None}], "good", [1.0], ""),
        ([{"value": 1}, {"name": "long", "value": 9}], None, [], "1 'good' (NUMERIC), 1 'long' (N"),
        ([{"value": 1}, {"name": "long", "value": 9}], "long", [9.0], "no rewards: 1 'good' (NUM"),
        ([{"value": 1}], "god", [], "no score of run.json is named 'god'"),
        ([{"value": None}], "good", [], "1 'good' (TEXT)"),
        ([{"value": math.nan}], "good", [], "1 'good' (not finite)"),
        ([{"value": 1, "observationId": "?"}], None, [], "1 'good' (of a span that is not here)"),
    ],
)
def test_which_scores_are_rewards_is_known_or_said(agl, scores, reward, taken, said):
    arguments = ["import", "--from", "langfuse", written("run.json", trace(1, *scores))]
    chosen = ["--reward", reward] if reward else []
    code, _, err = agl(*arguments, *chosen, "--path", "s.db")
    assert (code, stored()) == (0, {"se-1": (1, taken)})
    assert f" {len(taken)} rewards, " in err
    assert said in err
    assert bool(said) == ("score" in err)
    # A reward that is chosen later comes to what the store has.
    _, _, err = agl(*arguments, "--reward", "good", "--path", "s.db")
    if not reward and not taken and "not here" not in said:
        assert " 1 rewards, " in err
        assert stored() == {"se-1": (1, [1.0])}


PAID, KNOWN = [trace(1, {"value": 1})], "'se-1' is in the store as 'ro-"
PARTED = "trace 'tr-2' has a reward of its own, and the store has it within its conve"


@pytest.mark.parametrize(
    ("first", "later", "said", "kept"),
    [
        ([trace(1), trace(2)], [trace(1), trace(2, {"value": 1})], PARTED, (2, [])),
        (PAID, [trace(2, {"value": 0})], KNOWN, (1, [1.0])),
        (PAID, [trace(1), trace(2)], KNOWN, (1, [1.0])),
    ],
)
def test_what_a_stored_conversation_cannot_take_is_refused(agl, first, later, said, kept):
    for traces, code in ((first, 0), (later, 2)):
        file = written("run.json", traces)
        done, _, err = agl("import", "--from", "langfuse", file, "--path", "s.db")
        assert done == code, err
    assert said in err
    assert stored() == {"se-1": kept}
    assert agl("import", file, "--reward", "good", "--path", "s.db")[0] == 2


def test_spans_that_nobody_reads_are_counted_by_scope(agl):
    span = {"traceId": "a" * 32, "name": "llm", "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    spans = [
        {**span, "spanId": f"{n:016x}", "attributes": [{"key": k, "value": {"stringValue": "x"}}]}
        for n, k in ((1, "llm.theirs"), (2, "llm.vendor"))
    ]
    scope = {"scope": {"name": "theirs"}, "spans": spans}
    request = {"resourceSpans": [{"resource": {}, "scopeSpans": [scope]}]}
    _, _, err = agl("import", written("run.json", request), "--path", "s.db")
    assert "2 spans of scope 'theirs' look like model calls; no reader knows" in err


def otlp(value: Any) -> dict[str, Any]:
    """A value as OTLP's JSON has it."""
    if isinstance(value, dict):
        return {"kvlistValue": {"values": [{"key": k, "value": otlp(v)} for k, v in value.items()]}}
    if isinstance(value, list):
        return {"arrayValue": {"values": [otlp(one) for one in value]}}
    return {"stringValue": value} if value else {}


def logged(name: str, span: str, body: Any = None, **attributes: Any) -> dict[str, Any]:
    keys = [{"key": k.replace("__", "."), "value": otlp(v)} for k, v in attributes.items()]
    ids = {"traceId": "a" * 32, "spanId": span * 16, "timeUnixNano": "1000000000"}
    return {"eventName": name, **ids, "attributes": keys, "body": otlp(body or "")}


OLDER = [
    *(logged(f"gen_ai.{m['role']}.message", "1", {"content": m["content"]}) for m in SAID[:2]),
    logged("gen_ai.choice", "1", {"message": SAID[2], "finish_reason": "tool_calls"}),
]
NEWER = logged(
    "gen_ai.client.inference.operation.details",
    "1",
    gen_ai__input__messages=[
        {"role": m["role"], "parts": [{"type": "text", "content": m["content"]}]} for m in SAID[:2]
    ],
    gen_ai__output__messages=[SAID[2]],
)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("records", [OLDER, [NEWER]])
def test_genai_events_in_logs_are_read_with_their_spans(agl, records, apart):
    about = {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}
    span = {"traceId": "a" * 32, "spanId": "1" * 16, "name": "chat", "attributes": [about]}
    stray = logged("gen_ai.user.message", "2", {"content": "?"})
    traces = {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": [span]}]}]}
    logs = {"resourceLogs": [{"scopeLogs": [{"logRecords": [*records, stray, logged("x", "1")]}]}]}
    texts = [json.dumps(logs), json.dumps(traces)]
    files = dict(zip(("logs.jsonl", "traces.jsonl"), texts, strict=True))
    for name, text in (files := files if apart else {"a.jsonl": "\n".join(texts)}).items():
        Path(name).write_text(text)
    _, _, err = agl("import", *files, "--path", "s.db")
    assert "1 GenAI events in logs were not read, as no file has their spans\n" in err
    assert [one["messages"] for one in exported(agl, "messages")] == [SAID[:3]]


def form_with(form: str, **changes: Any) -> Any:
    return {**FORMS[form], **changes}


VERSIONS = "schema_version: expected ATIF-v1.0 to ATIF-v1.8; got"
CALLING = {"source": "agent", "tool_calls": [{}]}
NEWER_ATIF = form_with("atif", schema_version="ATIF-v1.9")
BOT = form_with("atif", steps=[{"source": "bot"}])
HUMAN = {"messages": [{"role": "human", "content": "hi"}]}
TOO_MUCH = form_with("langfuse", scores=[{"name": "good", "value": 10**400}])
NO_NAME = form_with("langfuse", scores=[{"name": "good", "value": 1}, {"value": 1}])
UNREAD = "observations[1]: expected a score or an observation of Langfuse; got one that cannot"
NO_TIME = form_with("langfuse", observations=[FIRST, {**SECOND, "startTime": "yesterday"}])


@pytest.mark.parametrize(
    ("form", "value", "message"),
    [
        ("atif", {"steps": []}, f"{VERSIONS} None"),
        ("atif", NEWER_ATIF, f"{VERSIONS} 'ATIF-v1.9'"),
        ("atif", BOT, "steps[0]: source: expected system, user or agent; got 'bot'"),
        ("atif", form_with("atif", steps=[CALLING]), "cannot be read: KeyError: 'tool_call_id'"),
        ("messages", {"text": "hi"}, "expected 'messages', a list of messages; got the keys ['te"),
        ("messages", HUMAN, "messages[0]: role: expected one of system, developer, user, assist"),
        ("langfuse", TOO_MUCH, "scores[0]: expected a score or an observation of Langfuse; got on"),
        ("langfuse", NO_NAME, "scores[1]: expected 'name' and 'traceId'; got the keys ['value']"),
        ("langfuse", NO_TIME, UNREAD),
        ("langfuse", {"id": "tr-1"}, "expected a trace of Langfuse with 'observations', or an"),
        ("phoenix", {"name": "llm"}, "expected 'context.trace_id'; got the keys ['name']"),
        ("mlflow", {"info": {}}, "expected a trace of MLflow with 'info' and 'data.spans'; got"),
        ("mlflow", 3, "expected an object, got 3"),
    ],
)
def test_what_is_not_of_a_form_is_refused_by_place(agl, form, value, message):
    Path("run.jsonl").write_text(json.dumps(value))
    code, _, err = agl("import", "--from", form, "run.jsonl", "--path", "s.db")
    assert code == 2
    assert err.startswith("agl: run.jsonl, line 1: ")
    assert message in err
    assert not [*Path().glob("s.db*")]  # nor a file with nothing in it
