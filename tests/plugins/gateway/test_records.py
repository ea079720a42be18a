"""What the record of a call says: its times, its choices, its end."""

import copy
import json
from collections.abc import AsyncIterator

import pytest

import agl
from agl.semconv import ModelCallAttributes as Key
from agl.store.packed_span import unpacked
from agl_gateway.asgi import Reply
from agl_gateway.backends import Answer
from agl_gateway.dialect import TRUE, Exchange
from agl_gateway.forward import relay
from agl_gateway.records import CallRecord, Origin
from agl_records.calls.reader import model_calls


async def test_times_versions_and_usage_are_in_the_record(bench):
    bench.llm.latency_seconds = 0.05
    await bench.post(bench.ask(stream=True, stream_options={"include_usage": True}))
    await bench.post(bench.ask())
    streamed, whole = (span.attributes for span in await bench.spans())
    assert streamed[Key.TIME_TO_FIRST_TOKEN] > 0.05
    assert streamed[Key.LATENCY] > streamed[Key.TIME_TO_FIRST_TOKEN] + 0.1
    assert Key.TIME_TO_FIRST_TOKEN not in whole
    assert whole[Key.LATENCY] > 0.05
    assert streamed[Key.OUTPUT_TOKENS] == whole[Key.OUTPUT_TOKENS] == 4


async def test_a_form_that_holds_an_answer_is_in_its_record(bench):
    free = ({}, {"response_format": {"type": "text"}}, {"tool_choice": "auto"})
    held = ({"response_format": {"type": "json_object"}}, {"tool_choice": "required"})
    for asked in (*free, *held, {"guided_regex": "a"}):
        await bench.post(bench.ask(**asked))
    found = [span.attributes.get("gen_ai.output.type") for span in await bench.spans()]
    assert found == [None] * 3 + ["json"] * 3


VERSIONS = [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 2}]
CHOICE = {
    **{"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"},
    "token_ids": [5, 6],
    "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -1.0}]},
    "weight_versions": VERSIONS,
}
USAGE = {
    **{"prompt_tokens": 1, "completion_tokens": 2},
    "prompt_tokens_details": {"cached_tokens": 1},
    "completion_tokens_details": {"reasoning_tokens": 1},
}
ANSWER = {
    **{"id": "c", "model": "m", "model_version": "3", "prompt_token_ids": [1]},
    **{"choices": [CHOICE], "usage": USAGE},
}
ODD = [None, "x", "NaN", -1, 1.5, True, [], {}, [None], ["x"], {"a": 1}, 10**30]


def paths(value: object, path: tuple = ()) -> list[tuple]:
    """To every field of every object, and to every item of every list."""
    items = value.items() if isinstance(value, dict) else []
    items = enumerate(value) if isinstance(value, list) else items
    return [one for key, item in items for one in ((*path, key), *paths(item, (*path, key)))]


def attributes_of(answer: dict) -> dict:
    request = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    record = CallRecord(Origin("ro", "at"), request=json.dumps(request).encode())
    record.answer = json.dumps(answer).encode()
    record.end(None)
    return unpacked([record.pack()])[0].attributes


# Which attributes say what a field says, if they are not of the same name.
SAID_BY = {
    "choices": None,  # all that is said of answers
    "message": {"gen_ai.output.messages"},
    "finish_reason": {"gen_ai.response.finish_reasons"},
    "weight_versions": {"agentlightning.model_version", "agentlightning.model_version_spans"},
    "logprobs": {"agentlightning.response_logprobs"},
    "token_ids": {"response_token_ids"},
    "prompt_token_ids": {"prompt_token_ids"},
    "usage": {f"gen_ai.usage.{n}_tokens" for n in ("input", "output", "cache_read.input")}
    | {"gen_ai.usage.reasoning.output_tokens"},
    "id": {"gen_ai.response.id"},
    "model": {"gen_ai.response.model"},
    "model_version": set(),
    "index": set(),
}


@pytest.mark.parametrize("path", paths(ANSWER), ids=str)
def test_an_odd_value_costs_its_own_field_and_no_other(path):
    whole = attributes_of(ANSWER)
    field = next(one for one in (path[2:3] + path[:1]) if one in SAID_BY)
    concerned = SAID_BY[field] if len(path) > 2 or path[0] != "choices" else None
    for odd in ODD:
        answer = copy.deepcopy(ANSWER)
        place = answer
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = odd
        found = attributes_of(answer)
        assert found["gen_ai.input.messages"] == whole["gen_ai.input.messages"]
        assert found.get(Key.FINISH_REASONS) != ["None"]
        if concerned is None:
            continue
        changed = {key for key in whole | found if whole.get(key) != found.get(key)}
        free = {"agentlightning.response.unreadable", "agentlightning.latency_seconds"}
        assert changed <= concerned | free, (odd, changed)
        span = agl.Span.from_attributes(
            attributes=found, name="agentlightning.model_call", rollout_id="r", attempt_id="a"
        )
        (call,) = model_calls([span])
        assert call.messages


async def test_a_done_event_that_is_cut_in_two_still_ends_the_record_in_time():
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    stream = end + b"data: [DONE]\n\n"

    async def pieces(cut: int) -> AsyncIterator[bytes]:
        yield stream[:cut]
        yield stream[cut:]

    for cut in range(1, len(stream)):
        events: list[str] = []

        async def send(message: dict, events: list[str] = events) -> None:
            if b"[DONE]" in message.get("body", b""):
                events.append("sent")

        record = CallRecord(Origin("ro", "at"))
        exchange = Exchange(b"{}", {"stream": TRUE})
        exchange.body_for("m", ("return_token_ids",))
        answer = Answer(200, {"content-type": "text/event-stream"}, pieces(cut))
        await relay(
            answer, exchange, record, Reply(send), lambda _, e=events: e.append("end"), bytes
        )
        assert events == ["end", "sent"], cut
