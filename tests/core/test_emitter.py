import asyncio
import decimal
import json
import math
from typing import Any

import numpy
import pytest

import agl
from agl.errors import ConfigError, TracerError
from agl.semconv import AGL_ANNOTATION, AGL_EXCEPTION, AGL_MESSAGE, AGL_OBJECT, AGL_OPERATION

INPUT = "agentlightning.operation.input"
OUTPUT = "agentlightning.operation.output"


async def traced(work: Any) -> list[agl.Span]:
    """The spans that ``work`` makes under an OtelTracer."""
    tracer = agl.OtelTracer()
    async with tracer.trace_context():
        result = work()
        if asyncio.iscoroutine(result):
            await result
        return tracer.get_last_trace()


def reward_span(value: float, **fields: Any) -> agl.Span:
    span = agl.emit_reward(value, propagate=False)
    return agl.Span.from_core_fields(span).model_copy(update=fields)


def test_reward_is_written_under_the_published_keys():
    span = agl.emit_reward(0.5, attributes={"meta": {"step": 3}}, propagate=False)
    assert span.name == AGL_ANNOTATION
    assert span.attributes == {
        "agentlightning.reward.0.name": "primary",
        "agentlightning.reward.0.value": 0.5,
        "meta.step": 3,
    }


def test_several_rewards_begin_with_the_primary_one():
    span = agl.emit_reward({"style": 1, "truth": 0.5}, primary_key="truth", propagate=False)
    found = [(one.name, one.value) for one in agl.get_rewards_from_span(span)]
    assert found == [("truth", 0.5), ("style", 1.0)]
    assert agl.get_reward_value(span) == 0.5
    assert agl.get_reward_value(agl.emit_reward({"style": 1, "truth": 0}, propagate=False)) == 1


@pytest.mark.parametrize(
    "value",
    [True, 1, 0.5, numpy.float32(0.5), numpy.int64(2), numpy.bool_(True), decimal.Decimal("0.5")],
)
def test_numbers_of_any_kind_become_floats(value):
    span = agl.emit_reward(value, propagate=False)
    stored = span.attributes["agentlightning.reward.0.value"]
    assert type(stored) is float
    assert stored == float(value)


def refused(error, said, emit, *values, **options):
    return [(emit, value, options, error, said) for value in values]


NO_NUMBERS = ["0.5", None, [0.5], 1j, numpy.array([0.5])]


@pytest.mark.parametrize(
    ("emit", "value", "options", "error", "said"),
    [
        *refused(ValueError, "must be finite", agl.emit_reward, math.nan, math.inf, -math.inf),
        *refused(ValueError, "must be finite", agl.emit_reward, numpy.float64("nan")),
        *refused(TypeError, "a reward is a number", agl.emit_reward, *NO_NUMBERS),
        *refused(ValueError, "primary_key", agl.emit_reward, {}),
        *refused(ValueError, "primary_key", agl.emit_reward, {"a": 1.0}, primary_key="b"),
        *refused(ValueError, "primary_key", agl.emit_reward, 1.0, {}, primary_key="a"),
        *(
            (agl.emit_annotation, {"a": value}, {}, ValueError, "attribute 'a'")
            for value in (None, object(), math.nan)
        ),
        *refused(TypeError, "emit_object", agl.emit_message, {"a": 1}),
        *refused(ValueError, "dict cannot be written as JSON", agl.emit_object, {"a": object()}),
    ],
)
def test_what_a_span_cannot_say_is_refused(emit, value, options, error, said):
    with pytest.raises(error, match=said):
        emit(value, propagate=False, **options)


def test_final_reward_is_the_one_with_the_highest_number():
    spans = [reward_span(0.1, sequence_id=3), reward_span(0.2, sequence_id=7)]
    other = agl.Span.from_attributes(attributes={}, name="x", sequence_id=9)
    assert agl.find_final_reward([*spans, other]) == 0.2
    assert agl.find_final_reward([other, *reversed(spans)]) == 0.2
    assert agl.find_reward_spans([other, *spans]) == spans
    assert agl.find_final_reward([other]) is None


def test_spans_without_a_number_are_newer_and_keep_their_order():
    spans = [reward_span(0.1), reward_span(0.2), reward_span(0.3, sequence_id=7)]
    assert agl.find_final_reward(spans) == 0.2


def test_final_reward_of_a_retried_rollout_is_that_of_its_newest_attempt():
    one = {"attempt_id": "at-1"}
    first = [reward_span(0.1, sequence_id=n, start_time=10.0 + n, **one) for n in range(1, 9)]
    second = [reward_span(0.9, attempt_id="at-2", sequence_id=1, start_time=20.0)]
    assert agl.find_final_reward([*first, *second]) == 0.9
    assert agl.find_final_reward([*second, *first]) == 0.9


def test_rewards_of_older_spans_are_read():
    output = "agentops.task.output"
    given = [
        (AGL_ANNOTATION, {"reward": 0.25}),
        ("grade.task", {output: json.dumps({"type": "reward", "value": 0.75})}),
        ("x", {"reward": 1.0, output: "not json"}),
    ]
    spans = [agl.Span.from_attributes(name=name, attributes=one) for name, one in given]
    assert [agl.get_reward_value(span) for span in spans] == [0.25, 0.75, None]
    assert not agl.is_reward_span(spans[-1])


async def test_message_comes_back():
    (span,) = await traced(lambda: agl.emit_message("hello", attributes={"user": {"id": 7}}))
    assert span.name == AGL_MESSAGE
    assert agl.get_message_value(span) == "hello"
    assert span.attributes["user.id"] == 7
    assert agl.get_object_value(span) is None


@pytest.mark.parametrize(
    "value", ["text", True, 3, 0.5, None, [1, "x", None], {"a": {"b": [1]}}, {}, 2**70]
)
def test_objects_come_back_as_they_were(value):
    span = agl.emit_object(value, propagate=False)
    assert span.name == AGL_OBJECT
    assert agl.get_object_value(span) == value
    assert type(agl.get_object_value(span)) is type(value)
    assert span.attributes["agentlightning.object.type"] == type(value).__name__


def test_object_is_json_as_published():
    more = {"meta": {"source": ["a", "b"]}}
    span = agl.emit_object({"name": "Ünal", "age": 30}, attributes=more, propagate=False)
    assert span.attributes["meta.source"] == ["a", "b"]
    assert span.attributes["agentlightning.object.type"] == "dict"
    assert span.attributes["agentlightning.object.json"] == '{"name": "Ünal", "age": 30}'


async def test_exception_is_recorded_with_its_traceback():
    def fail() -> None:
        try:
            raise KeyError("missing")
        except KeyError as error:
            agl.emit_exception(error)

    (span,) = await traced(fail)
    assert span.name == AGL_EXCEPTION
    assert span.attributes["exception.type"] == "KeyError"
    assert span.attributes["exception.message"] == "'missing'"
    assert "in fail" in str(span.attributes["exception.stacktrace"])
    assert span.status.status_code == "OK"


@agl.operation
def work() -> None: ...


@pytest.mark.parametrize(
    ("emit", "what"),
    [
        (lambda: agl.emit_reward(1.0), "emit annotation span"),
        (lambda: agl.emit_message("x"), "emit message span"),
        (lambda: agl.emit_object(1), "emit object span"),
        (lambda: agl.emit_exception(ValueError()), "emit exception span"),
        (work, "record operation 'work'"),  # its decoration needs none
    ],
)
def test_emitting_without_a_tracer_says_what_to_do(emit, what):
    with pytest.raises(TracerError, match=f"No active tracer found. Cannot {what}"):
        emit()


def test_every_span_is_logged_when_asked_for(monkeypatch, caplog):
    monkeypatch.setenv("AGL_EMITTER_DEBUG", "1")
    with caplog.at_level("INFO", "agl"):
        agl.emit_reward(0.5, propagate=False)
    assert "agentlightning.reward.0.value" in caplog.text


async def test_decorated_function_records_arguments_and_result():
    @agl.operation
    def search(query: str, *rest: int, limit: int = 10, **options: Any) -> dict[str, Any]:
        return {"hits": [1, 2], "query": query}

    span, bare = await traced(lambda: (search("x", 5, 6, exact=True), search("y")))
    assert span.name == AGL_OPERATION
    assert {f"{INPUT}.query": "y", f"{INPUT}.limit": 10} == {
        name: value for name, value in bare.attributes.items() if name.startswith(INPUT)
    }
    assert span.attributes == {
        "agentlightning.operation.name": "search",
        f"{INPUT}.query": "x",
        f"{INPUT}.rest.0": 5,
        f"{INPUT}.rest.1": 6,
        f"{INPUT}.limit": 10,
        f"{INPUT}.options.exact": True,
        f"{OUTPUT}.hits": [1, 2],
        f"{OUTPUT}.query": "x",
    }


async def test_decorator_takes_a_name_and_attributes():
    @agl.operation(name="custom", category="tool", meta={"level": 1})
    async def anything() -> str:
        await asyncio.sleep(0)
        return "done"

    (span,) = await traced(anything)
    assert span.attributes == {
        "agentlightning.operation.name": "custom",
        "category": "tool",
        "meta.level": 1,
        OUTPUT: "done",
    }


async def test_decorated_function_keeps_its_error_and_its_identity():
    @agl.operation
    def divide(a: float, b: float) -> float:
        """Divide."""
        return a / b

    def fail() -> None:
        with pytest.raises(ZeroDivisionError):
            divide(1, 0)
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            divide(1)

    assert (divide.__name__, divide.__doc__) == ("divide", "Divide.")
    span, _ = await traced(fail)
    assert span.status.status_code == "ERROR"
    assert span.attributes[f"{INPUT}.b"] == 0
    assert span.events[0].attributes["exception.type"] == "ZeroDivisionError"


async def test_method_is_recorded_without_its_instance():
    class Tool:
        @agl.operation
        def use(self, what: str) -> str:
            return what

    (span,) = await traced(lambda: Tool().use("hammer"))
    assert f"{INPUT}.self" not in span.attributes
    assert span.attributes[f"{INPUT}.what"] == "hammer"


async def test_calls_at_once_have_a_span_each():
    @agl.operation
    async def work(index: int) -> int:
        await asyncio.sleep(0.001 * (5 - index))
        return index

    async def all_at_once() -> None:
        await asyncio.gather(*(work(index) for index in range(5)))

    spans = await traced(all_at_once)
    pairs = [(span.attributes[f"{INPUT}.index"], span.attributes[OUTPUT]) for span in spans]
    assert sorted(pairs) == [(index, index) for index in range(5)]


async def test_block_records_input_and_output():
    def work() -> None:
        with agl.operation(tool_name="web_search") as op:
            op.set_input("first", query="q", filters={"date": "2024"})
            op.set_output({"result_count": 2, "top_result": "a"})

    (span,) = await traced(work)
    assert span.attributes == {
        "tool_name": "web_search",
        f"{INPUT}.args.0": "first",
        f"{INPUT}.query": "q",
        f"{INPUT}.filters.date": "2024",
        f"{OUTPUT}.result_count": 2,
        f"{OUTPUT}.top_result": "a",
    }
    assert span.end_time >= span.start_time


def test_local_operation_needs_no_tracer():
    @agl.operation(propagate=False)
    def local() -> str:
        return "here"

    assert local() == "here"
    with agl.operation(propagate=False, name="block") as op:
        op.set_output([1, 2])
    span = op.get_recorded_span()
    assert span.attributes[OUTPUT] == [1, 2]
    assert span.end_time is not None


def test_block_takes_input_when_it_has_begun_and_begins_once():
    op = agl.operation(propagate=False)
    with pytest.raises(TracerError, match="has not begun"):
        op.set_input(1)
    with op, pytest.raises(TracerError, match="is open already"):
        op.__enter__()


def test_generator_functions_are_refused():
    with pytest.raises(ConfigError, match="generator function 'numbers'"):

        @agl.operation
        def numbers():
            yield 1


def object_span_of_0_3(kind: str, literal: str) -> agl.Span:
    """As its runners write it: the literal is a text."""
    attributes = {"agentlightning.object.type": kind, "agentlightning.object.literal": literal}
    return agl.Span.from_attributes(name=AGL_OBJECT, attributes=attributes)


@pytest.mark.parametrize(
    ("kind", "literal", "value"),
    [
        ("str", "12", "12"),
        ("bool", "True", True),
        ("bool", "False", False),
        ("int", "3", 3),
        ("int", str(2**70), 2**70),
        ("float", "0.5", 0.5),
        ("float", "1e+300", 1e300),
        ("float", "inf", math.inf),
        ("bytes", "YWJj", b"abc"),
        ("bytes", "/wA=", b"\xff\x00"),
    ],
)
def test_object_of_0_3_comes_back_and_is_written_so(kind, literal, value):
    read = agl.get_object_value(object_span_of_0_3(kind, literal))
    assert (read, type(read)) == (value, type(value))
    written = agl.emit_object(value, propagate=False).attributes
    assert written == {"agentlightning.object.type": kind, "agentlightning.object.literal": literal}


def test_object_that_is_no_number_comes_back():
    assert math.isnan(agl.get_object_value(agl.emit_object(math.nan, propagate=False)))


@pytest.mark.parametrize(("kind", "literal"), [("int", "x"), ("bool", "x"), ("bytes", "a")])
def test_object_that_is_not_what_its_type_says_is_refused(kind, literal):
    with pytest.raises(ValueError, match=rf"'{literal}' is no {kind}"):
        agl.get_object_value(object_span_of_0_3(kind, literal))


@pytest.mark.parametrize("literal", [True, 3, 0.5])
def test_object_with_a_native_literal_is_read_too(literal):
    assert agl.get_object_value(object_span_of_0_3(type(literal).__name__, literal)) is literal


@pytest.mark.parametrize("forged", [{"writer": "agent"}, {"writer": "runner", "late": True}])
def test_grade_counts_that_its_runner_wrote_in_time(forged):
    def grade(value: float, number: int, **fields: Any) -> agl.Span:
        attributes = {**reward_span(value).attributes, "agentlightning.graded": True}
        return reward_span(value, sequence_id=number, attributes=attributes, **fields)

    true = grade(0.5, 1, writer="runner")
    assert agl.find_final_reward([true, grade(1.0, 2, **forged)]) == 0.5
    assert agl.find_final_reward([true, grade(1.0, 2, writer="runner")]) == 1.0
