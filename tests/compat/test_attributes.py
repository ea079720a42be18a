"""What 0.3's ``utils.otel`` gives for the same arguments, as measured with its release."""

from typing import Any

import pytest
from opentelemetry.sdk.trace import Tracer as SdkTracer, TracerProvider

import agl
from agentlightning.utils.otel import (
    check_attributes_sanity,
    filter_and_unflatten_attributes,
    flatten_attributes,
    format_exception_attributes,
    full_qualified_name,
    get_tracer,
    get_tracer_provider,
    sanitize_attribute_value,
    sanitize_attributes,
    sanitize_list_attribute_sanity,
    unflatten_attributes,
)


@pytest.mark.parametrize(
    ("nested", "flat", "expanded"),
    [
        (
            {"a": {"b": 1, "c": [2, 3]}},
            {"a.b": 1, "a.c": [2, 3]},
            {"a.b": 1, "a.c.0": 2, "a.c.1": 3},
        ),
        ([1, 2], {"0": 1, "1": 2}, {"0": 1, "1": 2}),
        ([{"a": 1}, 2], {"0.a": 1, "1": 2}, {"0.a": 1, "1": 2}),
        ({"a": None, "b": [], "c": {}}, {"a": None}, {"a": None}),
        ({"a": [1, "x"]}, {"a.0": 1, "a.1": "x"}, {"a.0": 1, "a.1": "x"}),
        ({"a": [True, 2]}, {"a.0": True, "a.1": 2}, {"a.0": True, "a.1": 2}),
        ({"a": [None]}, {"a.0": None}, {"a.0": None}),
        ({"a": (1, 2), "b": int}, {"a": (1, 2), "b": int}, {"a": (1, 2), "b": int}),
        ({"a": [[1, 2], [3]]}, {"a.0": [1, 2], "a.1": [3]}, {"a.0.0": 1, "a.0.1": 2, "a.1.0": 3}),
    ],
)
def test_flatten_gives_what_0_3_gives(nested, flat, expanded) -> None:
    assert flatten_attributes(nested) == flat
    assert flatten_attributes(nested, expand_leaf_lists=True) == expanded


def test_flatten_refuses_keys_that_are_no_strings_and_keys_given_twice() -> None:
    with pytest.raises(ValueError, match=r"got 1 \(int\) under 'a'"):
        flatten_attributes({"a": {1: 2}})
    with pytest.raises(ValueError, match=r"'a\.b' is given twice"):
        flatten_attributes({"a.b": 1, "a": {"b": 2}})


@pytest.mark.parametrize(
    ("flat", "nested"),
    [
        ({"a.b": 1, "a.c.0": 2, "a.c.1": 3}, {"a": {"b": 1, "c": [2, 3]}}),
        ({"0": "a", "1": "b"}, ["a", "b"]),
        ({"0.x": 1, "1.x": 2}, [{"x": 1}, {"x": 2}]),
        ({"a.0": 1, "a.2": 2}, {"a": {"0": 1, "2": 2}}),
        ({"a.1": 1, "a.0": 0}, {"a": [0, 1]}),
        ({"a": [1]}, {"a": [1]}),
        ({}, {}),
    ],
)
def test_unflatten_gives_what_0_3_gives(flat: dict[str, Any], nested: Any) -> None:
    assert unflatten_attributes(flat) == nested


def test_unflatten_refuses_what_0_3_overwrites() -> None:
    with pytest.raises(ValueError, match="prefix"):
        unflatten_attributes({"a": 1, "a.b": 2})


def test_filter_and_unflatten_takes_the_prefix_off() -> None:
    for flat, nested in (
        ({"a.b": 1, "a.c.0": 2, "x": 1}, {"b": 1, "c": [2]}),
        ({"a.0": 1, "a.1": 2}, [1, 2]),
        ({"x": 1}, {}),
    ):
        assert filter_and_unflatten_attributes(flat, "a") == nested
    with pytest.raises(ValueError, match="'a' is a value"):
        filter_and_unflatten_attributes({"a": 1}, "a")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1),
        (True, True),
        ("x", "x"),
        (None, "null"),
        ([1, 2], [1, 2]),
        ([], []),
        ([True, 2], [1, 2]),
        ([1, 2.5], [1.0, 2.5]),
        ([1, "x"], '[1, "x"]'),
        ([None, 1], "[null, 1]"),
        ([[1], [2]], "[[1], [2]]"),
        ((1, 2), "[1, 2]"),
        ({"a": 1}, '{"a": 1}'),
    ],
)
def test_sanitize_gives_what_0_3_gives(value: Any, expected: Any) -> None:
    for force in (True, False):
        got = sanitize_attribute_value(value, force=force)
        assert (got, type(got)) == (expected, type(expected))
    assert sanitize_attributes({"k": value, "l": 1}) == {"k": expected, "l": 1}


@pytest.mark.parametrize("value", [object(), b"x", {"a": object()}, {1, 2}])
def test_sanitize_without_force_refuses_what_json_cannot_hold(value: Any) -> None:
    assert isinstance(sanitize_attribute_value(value), str)
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        sanitize_attributes({"a": value}, force=False)


@pytest.mark.parametrize("value", [1, "x", 0.5, True, [], [1, 2], [True, 1], [1, 2.0]])
def test_sane_attributes_pass(value: Any) -> None:
    check_attributes_sanity({"a": value})


@pytest.mark.parametrize("value", [None, {}, (1,), b"", [1, "x"], [None], [[1]]])
def test_insane_attributes_are_refused_by_name(value: Any) -> None:
    with pytest.raises(ValueError, match="attribute 'a'"):
        check_attributes_sanity({"a": value})
    with pytest.raises(ValueError, match="keys are strings; got 1"):
        check_attributes_sanity({1: 2})


def test_list_of_several_types_is_refused_by_their_names() -> None:
    assert sanitize_list_attribute_sanity([True, 2.5]) == [1.0, 2.5]
    with pytest.raises(ValueError, match="got int, str"):
        sanitize_list_attribute_sanity([1, "x"])


def test_names_of_classes() -> None:
    import asyncio

    names = list(map(full_qualified_name, (int, ValueError, asyncio.CancelledError)))
    assert names == ["int", "ValueError", "asyncio.exceptions.CancelledError"]


def test_exception_has_opentelemetrys_attributes() -> None:
    try:
        raise ValueError("too long")
    except ValueError as error:
        attributes = format_exception_attributes(error)
    stacktrace = attributes.pop("exception.stacktrace")
    assert str(stacktrace).endswith("ValueError: too long\n")
    said = {"type": "ValueError", "message": "too long", "escaped": True}
    assert attributes == {f"exception.{name}": value for name, value in said.items()}


async def test_spans_of_get_tracer_belong_to_the_open_trace() -> None:
    tracer = agl.OtelTracer()
    with tracer.lifespan():
        async with tracer.trace_context():
            assert isinstance(get_tracer_provider(), TracerProvider)
            assert isinstance(get_tracer(), SdkTracer)
            with get_tracer().start_as_current_span("kept"):
                pass
            with get_tracer(use_active_span_processor=False).start_as_current_span("dropped"):
                pass
        assert [span.name for span in tracer.get_last_trace()] == ["kept"]


@pytest.mark.parametrize("ask", [get_tracer, get_tracer_provider])
def test_without_a_provider_there_is_no_tracer(ask, monkeypatch) -> None:
    from opentelemetry import trace

    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    with pytest.raises(RuntimeError, match="not set up in this process"):
        ask()
