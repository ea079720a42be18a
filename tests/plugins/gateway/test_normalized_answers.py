"""An agent sees what is recorded, in each dialect, whatever form the server's answer has."""

import asyncio
import json
import weakref
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from agl.semconv import ModelCallAttributes as Key
from agl_gateway.answers import assemble
from agl_gateway.app import DIALECTS
from agl_gateway.asgi import Reply
from agl_gateway.backends import Answer
from agl_gateway.errors import RefusedError
from agl_gateway.forward import relay
from agl_gateway.normalizer import read_whole
from agl_gateway.records import CallRecord, Origin

anthropic, openai = pytest.importorskip("anthropic"), pytest.importorskip("openai")
hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

USER = [{"role": "user", "content": "hello"}]
ASKED: dict[str, dict[str, Any]] = {
    "chat/completions": {"model": "m", "messages": USER},
    "messages": {"model": "m", "messages": USER, "max_tokens": 9},
    "responses": {"model": "m", "input": "hello"},
}
STREAM = "text/event-stream"


def relayed(path, chunks, content_type, **asked):
    """What an agent is sent for these pieces of an answer, and the record."""
    sent: list[bytes] = []

    async def pieces() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def send(message: dict) -> None:
        sent.append(message.get("body", b""))

    request = json.dumps({**ASKED[path], **asked, "stream": content_type == STREAM})
    exchange = DIALECTS[path].read(request.encode())
    exchange.body_for("m", ("return_token_ids", "logprobs"))
    record = CallRecord(Origin("ro", "at"))
    record.request = exchange.request
    answer = Answer(200, {"content-type": content_type}, pieces())
    try:
        asyncio.run(relay(answer, exchange, record, Reply(send), record.end, bytes))
    except RefusedError as refused:
        record.end(refused.message)
    return b"".join(sent), record


def recorded(record: CallRecord) -> tuple[str | None, Any]:
    """The error in a record, or what its message says: see ``seen_in``."""
    attributes = json.loads(record.pack().body)["attributes"]
    if error := attributes.get(Key.ERROR):
        return error, None
    return None, seen_in(json.loads(attributes[Key.OUTPUT_MESSAGES])[0])


def seen_in(message: dict[str, Any]) -> tuple[str, str, list[tuple[str, str, str]]]:
    """Reasoning, text, and of each tool call id, name and arguments."""
    calls = []
    for call in message.get("tool_calls") or ():
        said = call.get("function") or call["custom"]
        arguments = said.get("arguments") or said.get("input") or ""
        calls.append((call["id"], said["name"], arguments))
    if called := message.get("function_call"):
        calls.append(("", called["name"], called["arguments"]))
    return message.get("reasoning_content") or "", message.get("content") or "", calls


class Agents:
    """Official clients; each gets ``body`` for an answer."""

    body = b""

    def __init__(self) -> None:
        self.openai = self._client(openai.OpenAI, "httpx")
        self.anthropic = self._client(anthropic.Anthropic, "httpx2")

    def _client(self, kind: Any, http_library: str) -> Any:
        http = pytest.importorskip(http_library)

        def answer(_: Any) -> Any:
            return http.Response(200, headers={"content-type": STREAM}, content=self.body)

        client = http.Client(transport=http.MockTransport(answer))
        return kind(base_url="http://m", api_key="k", max_retries=0, http_client=client)

    def of(self, path: str) -> Any:
        """What a client makes of the stream; None if it raises the error in it."""
        read = {"messages": self._messages, "responses": self._responses}.get(path, self._chat)
        try:
            return read(ASKED[path])
        except (anthropic.APIError, openai.APIError):
            return None

    def _chat(self, asked: dict[str, Any]) -> Any:
        with self.openai.chat.completions.stream(**asked) as stream:
            for _ in stream:
                pass
            return seen_in(stream.current_completion_snapshot.choices[0].message.to_dict())

    def _messages(self, asked: dict[str, Any]) -> Any:
        texts, calls = {"thinking": "", "text": ""}, []
        for event in self.anthropic.messages.create(**asked, stream=True):
            if event.type == "content_block_start" and event.content_block.type == "tool_use":
                calls.append([event.content_block.id, event.content_block.name, ""])
            elif event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                calls[-1][2] += event.delta.partial_json
            elif event.type == "content_block_delta":
                kind = event.delta.type.removesuffix("_delta")
                texts[kind] += getattr(event.delta, kind)
        return texts["thinking"], texts["text"], [tuple(call) for call in calls]

    def _responses(self, asked: dict[str, Any]) -> Any:
        last = list(self.openai.responses.create(**asked, stream=True))[-1]
        if last.type in ("error", "response.failed"):
            return None
        texts, calls = {"reasoning": "", "message": ""}, []
        for item in last.response.output:
            if item.type == "function_call":
                calls.append((item.call_id, item.name, item.arguments))
            else:
                texts[item.type] += "".join(part.text for part in item.content)
        return texts["reasoning"], texts["message"], calls


@pytest.fixture(scope="module")
def agents():
    return Agents()


def check(agents: Agents, path: str, chunks: list[bytes]) -> Any:
    """What was recorded, after a comparison with what the agent's client made of the same."""
    agents.body, record = relayed(path, chunks, STREAM)
    error, expected = recorded(record)
    assert agents.of(path) == expected, (error, agents.body)
    return expected if error is None else error


def events(*deltas: Any, finish: Any = "stop") -> list[bytes]:
    """A stream with these deltas; what is no dict is a list of choices."""
    choices = [
        [{"index": 0, "delta": one, "finish_reason": None}] if isinstance(one, dict) else one
        for one in (*deltas, [{"index": 0, "delta": {}, "finish_reason": finish}])
    ]
    chunks = [{"id": "c", "created": 1, "model": "m", "object": "chat.completion.chunk"}]
    said = [json.dumps(chunks[0] | {"choices": one}, ensure_ascii=False) for one in choices]
    return [f"data: {one}\n\n".encode() for one in (*said, "[DONE]")]


def of_choice(index: Any, text: str, finish: Any = None) -> list[Any]:
    return [{"index": index, "delta": {"content": text}, "finish_reason": finish}]


def piece(index: Any = ..., call_id: Any = None, name: Any = None, arguments: Any = None) -> Any:
    function = {"name": name, "arguments": arguments}
    call: dict[str, Any] = {} if index is ... else {"index": index}
    call |= {"id": call_id} if call_id is not None else {}
    given = {key: value for key, value in function.items() if value is not None}
    return {"tool_calls": [{**call, "type": "function", "function": given}]}


A, B = ("a", "f", '{"x":1}'), ("b", "g", '{"y":2}')
MAGISTRAL = {"type": "thinking", "thinking": [{"type": "text", "text": "hm "}]}
SHAPES = {
    "all have index 0": (events(piece(0, *A), piece(0, *B)), ("", "", [A, B])),
    "no index": (events(piece(..., *A), piece(..., *B)), ("", "", [A, B])),
    "null as index": (events(piece(None, *A), piece(None, *B)), ("", "", [A, B])),
    "a string as index": (events(piece("0", *A), piece("1", *B)), ("", "", [A, B])),
    "far and falling indices": (events(piece(20_000, *A), piece(2, *B)), ("", "", [A, B])),
    "numbers, then none": (events(piece(2, *A), piece(None, *B)), ("", "", [A, B])),
    "pieces without an index": (
        events(piece(..., "a", "f", '{"x"'), piece(..., arguments=":1}"), piece(..., *B)),
        ("", "", [A, B]),
    ),
    "alternating pieces": (
        events(piece(0, "a", "f", '{"x"'), piece(1, "b", "g", '{"y"'),
               piece(0, arguments=":1}"), piece(1, arguments=":2}")),
        ("", "", [A, B]),
    ),
    "text within a call": (
        events(piece(0, "a", "f", '{"x"'), {"content": "so"}, piece(0, arguments=":1}")),
        ("", "so", [A]),
    ),
    "text within a call, and more arguments than complete ones": (
        events(piece(0, "a", "f", ""), {"content": "so"},
               piece(0, arguments="{}"), piece(0, arguments="{")),
        ("", "so", [("a", "f", "{}{")]),
    ),
    "id and name in every piece": (
        events(piece(0, "a", "f", '{"x"'), piece(0, "a", "f", ":1}")), ("", "", [A])),
    "a name in every piece, and an id in the first": (
        events(piece(0, "a", "f", '{"x"'), piece(0, None, "f", ":1}")), ("", "", [A])),
    "a name in pieces": (events(piece(0, "a", "look_"), piece(0, None, "up", "{}")),
                         ("", "", [("a", "look_up", "{}")])),
    "another name with the same id, after something else": (
        events(piece(0, "a", "f"), {"reasoning_content": "a"}, piece(0, "a", "g")),
        ("a", "", [("a", "f", ""), ("a", "g", "")])),
    "no ids": (events(piece(0, None, "f", '{"x":1}'), piece(0, "", "g", '{"y":2}')),
               ("", "", [("call_c_0", *A[1:]), ("call_c_1", *B[1:])])),
    "an object as arguments": (events(piece(0, "a", "f", {"x": 1})),
                               ("", "", [("a", "f", '{"x": 1}')])),
    "an empty object as arguments": (events(piece(0, "a", "f", {}), piece(0, "b", "g", {})),
                                     ("", "", [("a", "f", "{}"), ("b", "g", "{}")])),
    "an empty object, and then arguments": (
        events(piece(0, "a", "f", {}), piece(0, arguments='{"x"'), piece(0, arguments=":1}")),
        ("", "", [A])),
    "the choice has no index": (
        events({"content": "a"}, of_choice(None, "b"), [{"delta": {"content": "c"}}]),
        ("", "abc", [])),
    "the choice has another number": (
        events(of_choice(10**12, "a"), of_choice(None, "b"), of_choice(10**12, "c", "stop"))[:3],
        ("", "abc", [])),
    "the number counts blocks, or tokens": (
        events({"content": "a"}, of_choice(1, "b"), of_choice(3, "c")), ("", "abc", [])),
    "two choices in turn where one was asked for": (
        events({"content": "a"}, of_choice(1, "b"), {"content": "c"}), "choice 0 after choice 1"),
    "plain pieces after a second choice": (
        events(of_choice(1, "a"), {"content": "b"}), "choice 0 after choice 1"),
    "two answers in one chunk": (
        events([*of_choice(0, "a"), *of_choice(0, "b")]), "two pieces of one choice"),
    "two answers without an index in one chunk": (
        events([*of_choice(None, "a"), *of_choice(None, "b")]), "two pieces of one choice"),
    "a list as content": (
        events({"content": [MAGISTRAL]}, {"content": [{"type": "text", "text": "4"}]}),
        ("hm ", "4", [])),
    "choices are null": (events({"content": "a"}, None), ("", "a", [])),
    "another word for stop": (events({"content": "a"}, finish="EOS_TOKEN"), ("", "a", [])),
    "finish_reason as an object": (events({"content": "a"}, finish={"type": "stop"}),
                                   ("", "a", [])),
    "error": (events({"content": "Hal"}, finish="error"), "finish_reason 'error'"),
    "abort": (events(piece(0, *A), finish="abort"), "finish_reason 'abort'"),
    "no name": (events(piece(0, "a", None, "{}")), "tool call 0 has no name"),
    "arguments after their end": (events(piece(0, *A), piece(1, *B), piece(0, arguments="!")),
                                  "more arguments of tool call 0"),
    "a call after the end": (events(of_choice(0, "a", "stop"), piece(0, *A)), ("", "a", [A])),
    "an object after the end": (
        events(of_choice(0, "a", "stop"), piece(0, "a", "f", {}), finish=None),
        ("", "a", [("a", "f", "{}")])),
    "a call without a name after the end": (
        events(of_choice(0, "a", "stop"), piece(0, "a"), finish=None), "tool call 0 has no name"),
    "no finish_reason": (events({"content": "a"}, finish=None), "ended before"),
    "no more": (events({"content": "a"})[:1], "ended before the answer was complete"),
    "an error among the pieces": (
        [*events({"content": "a"})[:1], b'data: {"error":{"message":"worker died"}}\n\n'],
        "worker died"),
    "no JSON": ([*events({"content": "a"})[:1], b"data: {broken\n\n"], "not JSON"),
    "an unknown part": (events({"content": [{"type": "video"}]}), "a part of type 'video'"),
}  # fmt: skip


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("shape", SHAPES)
def test_odd_streams_are_seen_as_they_are_recorded(agents, path, shape):
    chunks, expected = SHAPES[shape]
    found = check(agents, path, chunks)
    if isinstance(expected, str):
        assert expected in found
        assert expected in agents.body.decode()
    else:
        assert found == expected


def test_a_function_call_of_the_older_form_is_seen_as_it_is_recorded(agents):
    pieces = [{"name": "f", "arguments": ""}, {"arguments": '{"x"'}, {"arguments": ":1}"}]
    stream = events(*({"function_call": one} for one in pieces), finish="function_call")
    assert check(agents, "chat/completions", stream) == ("", "", [("", *A[1:])])


def test_a_name_and_an_id_that_come_with_each_piece_are_recorded_once():
    pieces = [
        {"function_call": {"name": "f", "arguments": one}, "audio": {"id": "au1", "data": one}}
        for one in ('{"x"', ":1}")
    ]
    answer: Any = assemble(events(*pieces), b"").completion()
    called, audio = {"name": "f", "arguments": A[2]}, {"id": "au1", "data": A[2]}
    assert answer["choices"][0]["message"] == {"function_call": called, "audio": audio}


@pytest.mark.parametrize(
    ("path", "end"),
    [
        ("chat/completions", '"finish_reason":"length"'),
        ("messages", '"stop_reason":"max_tokens"'),
        ("responses", '"reason":"max_output_tokens"'),
    ],
)
def test_an_answer_ends_once(path, end):
    last = [{"index": 0, "delta": {}, "finish_reason": "length"}]
    sent, record = relayed(path, events({"content": "a"}, last, finish="stop"), STREAM)
    assert end in sent.decode().replace(": ", ":")
    assert b'"stop"' not in sent
    assert json.loads(record.pack().body)["attributes"][Key.FINISH_REASONS] == ["length"]


OLDER = {"function_call": {"name": "f", "arguments": "{}"}}
CUSTOM = {"tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "f", "input": "x"}}]}


@pytest.mark.parametrize("path", ["messages", "responses"])
@pytest.mark.parametrize("said", [OLDER, CUSTOM], ids=["older", "custom"])
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_call_that_an_api_cannot_say_is_a_failure_for_agent_and_record(path, said, is_stream):
    whole = {"id": "c", "choices": [{"index": 0, "message": said, "finish_reason": "stop"}]}
    chunks = events(said) if is_stream else [json.dumps(whole).encode()]
    sent, record = relayed(path, chunks, STREAM if is_stream else "application/json")
    assert record.error_kind == "infrastructure"
    for one in (str(record.error), sent.decode() if is_stream else ""):
        assert not one or "a call of" in one


@pytest.mark.parametrize("path", ["messages", "responses"])
def test_what_fails_at_the_end_of_a_stream_is_recorded_as_failed(path):
    odd = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":"1"}}\n\n'
    *pieces, _ = events({"content": "a"})
    sent, record = relayed(path, [*pieces, odd, b"data: [DONE]\n", b"\n"], STREAM)
    assert record.error_kind == "infrastructure"
    assert b"error" in sent


def of_several(*choices: dict[str, Any], **answer: Any) -> list[Any]:
    """What contradicts each of several answers, in the order of their numbers."""
    given = [{"text": "a", "finish_reason": "stop", **one} for one in choices]
    record = CallRecord(Origin("ro", "at"))
    record.answer = json.dumps({"id": "c", "choices": given, **answer}).encode()
    attributes = json.loads(record.pack().body)["attributes"]
    others = (f"{Key.CHOICE}.{number}.contradiction" for number in range(1, len(choices)))
    return [attributes.get(name) for name in (Key.CONTRADICTION, *others)]


@pytest.mark.parametrize("numbers", [(1, 2), (0, 2), (0, 0), (0, None), ("0", "1")])
def test_an_answer_that_an_agent_would_number_otherwise_is_marked(numbers):
    said = of_several(*({"index": number} for number in numbers))
    assert all("numbers of the 2 choices are" in str(one) for one in said)


@pytest.mark.parametrize("numbers", [(0, 1), (1, 0), (None, None)])
def test_numbers_from_0_are_right_in_any_order(numbers):
    assert of_several(*({"index": number} for number in numbers)) == [None, None]


def test_an_answer_to_another_prompt_is_marked():
    of_prompts = [{"index": n, "prompt_token_ids": [n]} for n in (0, 1)]
    assert of_several(*of_prompts) == [None, "it answers another prompt than the first choice"]


def test_tokens_of_a_completion_without_text_are_marked():
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [-1.0, -1.0]}
    (said,) = of_several({"index": 0, "text": "", "logprobs": logprobs})
    assert said == "it says nothing, and its tokens say 'a'"


@pytest.mark.parametrize("path", ASKED)
def test_a_call_needs_no_collector_to_be_freed(path):
    exchange = DIALECTS[path].read(json.dumps(ASKED[path]).encode())
    exchange.body_for("m", ("return_token_ids",))
    known = weakref.ref(exchange)
    del exchange
    assert known() is None


@pytest.mark.parametrize("index", [2, None, -1, "0"])
def test_a_choice_that_was_not_asked_for_is_no_part_of_the_answer(index):
    chunks = events([{"index": index, "delta": {}}])
    sent, record = relayed("chat/completions", chunks, STREAM, n=2)
    assert f"choice {index!r} of 2" in sent.decode().replace("\\", "")
    assert f"choice {index!r} of 2" in str(recorded(record)[0])


@pytest.mark.parametrize("path", ASKED)
def test_a_failed_answer_is_the_fault_of_the_server_and_keeps_its_text(path):
    choice = {"message": {"content": "Hal"}, "finish_reason": "abort"}
    whole = json.dumps({"id": "c", "choices": [choice]}).encode()
    for pieces, kind in ((SHAPES["error"][0], STREAM), ([whole], "application/json")):
        _, record = relayed(path, pieces, kind)
        attributes = json.loads(record.pack().body)["attributes"]
        assert "Hal" in attributes[Key.OUTPUT_MESSAGES]
        assert record.error_kind == "infrastructure"


TEXT = st.sampled_from(["a", "é\n", "{", '"', ""])
LISTS = st.sampled_from([[MAGISTRAL], [{"type": "text", "text": "t"}, MAGISTRAL], []])
SAID = st.one_of(
    st.builds(lambda text: {"content": text}, st.one_of(TEXT, LISTS, st.none())),
    st.builds(lambda text: {"reasoning_content": text}, TEXT),
)
PIECES = st.builds(
    piece,
    st.sampled_from([0, 0, 1, 2, ..., None, -1, "0"]),
    st.sampled_from([None, None, "", "a", "b", "d"]),
    st.sampled_from([None, None, "f", "g", ""]),
    st.sampled_from([None, "", "{", '"x"', ":1", "}", "{}", '{"x":1}', " ", {"y": "é"}, {}, []]),
)
ODD = st.one_of(
    st.builds(of_choice, st.sampled_from([0, 0, None, 1]), TEXT, st.sampled_from([None, "stop"])),
    st.builds(lambda text: {"function_call": {"name": "f", "arguments": text}}, TEXT),
    st.sampled_from([[], None]),
)
SOUP = st.lists(st.one_of(PIECES, PIECES, SAID, ODD), max_size=9)
FINISH = st.sampled_from(["stop", "tool_calls", "length", "STOP", "odd", "abort", "", None])


@st.composite
def whole_calls(draw: Any) -> tuple[list[Any], list[tuple[str, str, str]]]:
    """Deltas whose calls can be told apart, and the calls."""
    calls = draw(st.lists(st.tuples(st.sampled_from("fg"), st.sampled_from(
        ['{"x":1}', '{"a":{"b":"}"}}', "{}"])), max_size=4))  # fmt: skip
    named = [(f"id{n}", *call) for n, call in enumerate(calls)]
    indices = draw(st.sampled_from(["right", "all 0", "none", "null", "far"]))
    repeats = draw(st.booleans())
    deltas, waiting = [], []
    for number, (call_id, name, arguments) in enumerate(named):
        places = {"right": number, "all 0": 0, "none": ..., "null": None, "far": 90 - 7 * number}
        index = places[indices]
        cut = draw(st.integers(0, len(arguments)))
        rest = (call_id, name) if repeats else (None, None)
        deltas.append(piece(index, call_id, name, arguments[:cut]))
        waiting.append(piece(index, *rest, arguments[cut:]))
        if not (indices in ("right", "far") and draw(st.booleans())):
            deltas += waiting if len(waiting) == 1 else []
            waiting = [] if len(waiting) == 1 else waiting
    return [*deltas, *waiting], named


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(stream) + 1) for place in places} | {0, len(stream)})
    return [stream[begin:end] for begin, end in pairwise(ends)]


NIGHTLY = [pytest.mark.nightly, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("examples", [100, pytest.param(10_000, marks=NIGHTLY)])
@pytest.mark.parametrize("path", ASKED)
def test_any_stream_is_seen_as_it_is_recorded(agents, path, examples):
    @hypothesis.settings(max_examples=examples, database=None, deadline=None)
    @hypothesis.given(SOUP, FINISH, st.lists(st.integers(0, 5000), max_size=9), whole_calls())
    def compare(soup: Any, finish: Any, places: list[int], drawn: Any) -> None:
        stream = b"".join(events(*soup, finish=finish))
        check(agents, path, cut(stream, places))
        deltas, calls = drawn
        assert check(agents, path, cut(b"".join(events(*deltas)), places)) == ("", "", calls)

    compare()


def test_a_stream_of_the_documented_form_is_passed_on_as_it_is():
    pieces = (piece(0, "a", "f", ""), piece(0, arguments='{"x":1}'), piece(1, *B))
    stream = b"".join(events({"content": "a"}, *pieces, finish="tool_calls"))
    assert relayed("chat/completions", cut(stream, [99, 300]), STREAM)[0] == stream


WHOLE = {
    "an object as arguments": ({"tool_calls": [{"id": "a", "function": {"name": "f",
        "arguments": {"x": 1}}}]}, ("", "", [("a", "f", '{"x": 1}')])),
    "no id": ({"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
              ("", "", [("call_c_0", "f", "{}")])),
    "a list as content": ({"content": [MAGISTRAL, {"type": "text", "text": "4"}]},
                          ("hm ", "4", [])),
}  # fmt: skip


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("shape", WHOLE)
def test_odd_whole_answers_are_seen_as_they_are_recorded(path, shape):
    message, expected = WHOLE[shape]
    choices = [{"index": 0, "message": message, "finish_reason": "MODEL_LENGTH"}]
    answer = json.dumps({"id": "c", "choices": choices}).encode()
    body, record = relayed(path, [answer], "application/json")
    assert recorded(record) == (None, expected)
    given = json.loads(body)
    for choice in given.get("choices", ()):
        assert (seen_in(choice["message"]), choice["finish_reason"]) == (expected, "length")
    for text in (expected[0], expected[1], *(name for call in expected[2] for name in call[:2])):
        assert text in json.dumps(given)


def test_a_whole_answer_without_a_reason_to_finish_is_brought_into_form_too():
    message = {"tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}
    answer = {"id": "c", "choices": [{"index": 0, "message": message}]}
    (choice,) = json.loads(read_whole(json.dumps(answer).encode()).body)["choices"]
    expected = (("", "", [("call_c_0", "f", '{"x": 1}')]), None)
    assert (seen_in(choice["message"]), choice["finish_reason"]) == expected
