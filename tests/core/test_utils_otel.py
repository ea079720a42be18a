"""Tags and links, as 0.3's ``utils.otel`` makes and reads them."""

from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

import agl
from agl.utils.otel import (
    LinkMatch,
    extract_links_from_attributes,
    extract_tags_from_attributes,
    filter_attributes,
    make_link_attributes,
    make_tag_attributes,
    query_linked_spans,
)


def test_filter_keeps_whole_keys():
    attributes = {"a.b.0": 1, "a.b": "root", "a.bc": 2, "other": 1}
    assert filter_attributes(attributes, "a.b") == {"a.b.0": 1, "a.b": "root"}


def test_tags_come_back_in_order():
    tags = [f"tag-{index}" for index in range(12)]
    attributes = make_tag_attributes(tags)
    assert attributes["agentlightning.tag.0"] == "tag-0"
    assert extract_tags_from_attributes({**attributes, "other": 1}) == tags
    assert extract_tags_from_attributes({}) == []


def test_one_string_is_no_list_of_tags():
    with pytest.raises(ValueError, match="list of strings"):
        make_tag_attributes("tool")


def span(**attributes: Any) -> agl.Span:
    return agl.Span.from_attributes(attributes=attributes, name="x")


def test_links_come_back_and_find_their_span():
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
    assert query_linked_spans([match], []) == []


def test_links_may_address_a_span_by_its_ids():
    spans = [span(), span()]
    links = extract_links_from_attributes(
        make_link_attributes({"trace_id": spans[1].trace_id, "span_id": spans[1].span_id})
    )
    assert query_linked_spans(spans, links) == [spans[1]]


def test_links_work_on_spans_of_opentelemetry():
    made = TracerProvider().get_tracer("t").start_span("x", attributes={"k": "v"})
    assert query_linked_spans([made], [LinkMatch(key_match="k", value_match="v")]) == [made]
    by_id = LinkMatch(key_match="span_id", value_match=f"{made.get_span_context().span_id:016x}")
    assert query_linked_spans([made], [by_id]) == [made]


def test_half_a_link_is_refused():
    with pytest.raises(ValueError, match="link 0 needs both"):
        extract_links_from_attributes({"agentlightning.link.0.key_match": "a"})
