import enum
import math
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
from hypothesis import given, strategies as st

import agl
from agl.utils.otel import (
    LinkMatch,
    extract_links_from_attributes,
    extract_tags_from_attributes,
    filter_attributes,
    flatten_attributes,
    make_link_attributes,
    make_tag_attributes,
    query_linked_spans,
    sanitize_attribute_value,
    unflatten_attributes,
)


class Color(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int


def test_nested_data_gets_dotted_keys() -> None:
    nested = {"a": {"b": {"c": 1}}, "d": [1, 2], "e": [1, "x"], "f": [{"g": True}], "h": []}
    assert flatten_attributes(nested) == {
        "a.b.c": 1,
        "d": [1, 2],
        "e.0": 1,
        "e.1": "x",
        "f.0.g": True,
        "h": [],
    }


def test_prefix_stands_before_every_key() -> None:
    assert flatten_attributes({"a": 1, "b": {"c": 2}}, prefix="p.q") == {"p.q.a": 1, "p.q.b.c": 2}


def test_lists_of_bools_and_ints_are_not_of_one_type() -> None:
    assert flatten_attributes({"a": [True, 1]}) == {"a.0": True, "a.1": 1}


def test_two_values_under_one_key_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'a\.b' is given twice"):
        flatten_attributes({"a.b": 1, "a": {"b": 2}})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "null"),
        (Color.RED, "red"),
        (agl.LightningEnvVar.AGL_CURRENT_ROLE, "AGL_CURRENT_ROLE"),
        (numpy.float32(0.5), 0.5),
        (numpy.int64(3), 3),
        (numpy.bool_(True), True),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (2**63, str(2**63)),
        (-(2**63), -(2**63)),
        (Point(1), '{"x": 1}'),
        ({1}, "[1]"),
        (agl.RewardDimension(name="a", value=1.0), '{"name": "a", "value": 1.0}'),
    ],
)
def test_values_become_what_a_span_can_hold(value: Any, expected: Any) -> None:
    got = sanitize_attribute_value(value)
    assert got == expected
    assert type(got) is type(expected)


def test_object_without_json_becomes_its_text() -> None:
    class Thing:
        def __str__(self) -> str:
            return "a thing"

    assert sanitize_attribute_value(Thing()) == '"a thing"'


@pytest.mark.parametrize("value", [None, math.nan, 2**63, object(), Point(1), b"x"])
def test_strict_refuses_what_a_span_cannot_hold(value: Any) -> None:
    with pytest.raises(ValueError, match=r"attribute 'a\.b': got"):
        flatten_attributes({"a": {"b": value}}, strict=True)


keys = st.text(st.characters(codec="ascii", exclude_characters="."), min_size=1, max_size=4)
leaves = st.one_of(st.text(max_size=5), st.booleans(), st.integers(-(2**63), 2**63 - 1))


@given(
    st.dictionaries(
        keys.filter(lambda key: not key.isdigit()),
        st.recursive(
            leaves,
            lambda inner: st.dictionaries(
                keys.filter(lambda key: not key.isdigit()), inner, min_size=1, max_size=3
            ),
            max_leaves=8,
        ),
        max_size=4,
    )
)
def test_unflatten_undoes_flatten(nested: dict[str, Any]) -> None:
    assert unflatten_attributes(flatten_attributes(nested)) == nested


def test_unflatten_makes_lists_of_counted_keys_only() -> None:
    flat = {"a.0.b": 1, "a.1.b": 2, "c.1": 3, "d.0": 4, "d.x": 5}
    assert unflatten_attributes(flat) == {
        "a": [{"b": 1}, {"b": 2}],
        "c": {"1": 3},
        "d": {"0": 4, "x": 5},
    }


@pytest.mark.parametrize("flat", [{"a": 1, "a.b": 2}, {"a.b": 2, "a": 1}, {"a": {}, "a.b": 1}])
def test_unflatten_refuses_a_key_that_is_a_prefix(flat: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="prefix"):
        unflatten_attributes(flat)


def test_filter_takes_the_prefix_off() -> None:
    attributes = {"a.b": 1, "a.c.d": 2, "ab.c": 3, "a": 4}
    assert filter_attributes(attributes, "a") == {"b": 1, "c.d": 2, "": 4}


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
