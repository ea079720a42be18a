"""What 0.3's ``utils.otel`` gives for the same arguments, as measured with its release."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import Tracer as SdkTracer, TracerProvider

import agl
from agl.utils.otel import (
    LinkMatch,
    check_attributes_sanity,
    extract_links_from_attributes,
    extract_tags_from_attributes,
    filter_and_unflatten_attributes,
    filter_attributes,
    flatten_attributes,
    format_exception_attributes,
    full_qualified_name,
    get_tracer,
    get_tracer_provider,
    make_link_attributes,
    make_tag_attributes,
    query_linked_spans,
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
        (
            {"a": [[1, 2], [3]]},
            {"a.0": [1, 2], "a.1": [3]},
            {"a.0.0": 1, "a.0.1": 2, "a.1.0": 3},
        ),
    ],
)
def test_flatten_gives_what_0_3_gives(
    nested: Any, flat: dict[str, Any], expanded: dict[str, Any]
) -> None:
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


def test_filter_keeps_whole_keys() -> None:
    attributes = {"a.b.0": 1, "a.b": "root", "a.bc": 2, "other": 1}
    assert filter_attributes(attributes, "a.b") == {"a.b.0": 1, "a.b": "root"}


def test_filter_and_unflatten_takes_the_prefix_off() -> None:
    assert filter_and_unflatten_attributes({"a.b": 1, "a.c.0": 2, "x": 1}, "a") == {
        "b": 1,
        "c": [2],
    }
    assert filter_and_unflatten_attributes({"a.0": 1, "a.1": 2}, "a") == [1, 2]
    assert filter_and_unflatten_attributes({"x": 1}, "a") == {}
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


def test_number_that_no_span_can_hold_becomes_text() -> None:
    values = {"a": math.nan, "b": 2**70}
    assert sanitize_attributes(values) == {"a": "nan", "b": str(2**70)}


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
    assert attributes == {
        "exception.type": "ValueError",
        "exception.message": "too long",
        "exception.escaped": True,
    }


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
def test_without_a_provider_there_is_no_tracer(
    ask: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry import trace

    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    with pytest.raises(RuntimeError, match="not set up in this process"):
        ask()


def test_tags_come_back_in_order() -> None:
    tags = [f"tag-{index}" for index in range(12)]
    attributes = make_tag_attributes(tags)
    assert attributes["agentlightning.tag.0"] == "tag-0"
    assert extract_tags_from_attributes({**attributes, "other": 1}) == tags
    assert extract_tags_from_attributes({}) == []


def test_one_string_is_no_list_of_tags() -> None:
    with pytest.raises(ValueError, match="list of strings"):
        make_tag_attributes("tool")


def span(**attributes: Any) -> agl.Span:
    return agl.Span.from_attributes(attributes=attributes, name="x")


def test_links_come_back_and_find_their_span() -> None:
    attributes = make_link_attributes({"conversation_id": "chat-42", "turn": 1})
    assert attributes["agentlightning.link.0.key_match"] == "conversation_id"
    assert attributes["agentlightning.link.0.value_match"] == "chat-42"
    links = extract_links_from_attributes(attributes)
    assert links == [
        LinkMatch(key_match="conversation_id", value_match="chat-42"),
        LinkMatch(key_match="turn", value_match=1),
    ]
    match = span(conversation_id="chat-42", turn=1)
    others = [span(conversation_id="chat-42", turn=2), span(turn=1), span()]
    assert query_linked_spans([*others, match], links) == [match]


def test_links_may_address_a_span_by_its_ids() -> None:
    spans = [span(), span()]
    links = extract_links_from_attributes(
        make_link_attributes({"trace_id": spans[1].trace_id, "span_id": spans[1].span_id})
    )
    assert query_linked_spans(spans, links) == [spans[1]]


def test_links_work_on_spans_of_opentelemetry() -> None:
    from opentelemetry.sdk.trace import TracerProvider

    made = TracerProvider().get_tracer("t").start_span("x", attributes={"k": "v"})
    assert query_linked_spans([made], [LinkMatch(key_match="k", value_match="v")]) == [made]
    by_id = LinkMatch(key_match="span_id", value_match=f"{made.get_span_context().span_id:016x}")
    assert query_linked_spans([made], [by_id]) == [made]


def test_no_link_matches_nothing() -> None:
    assert query_linked_spans([span(a=1)], []) == []


def test_half_a_link_is_refused() -> None:
    with pytest.raises(ValueError, match="link 0 needs both"):
        extract_links_from_attributes({"agentlightning.link.0.key_match": "a"})
