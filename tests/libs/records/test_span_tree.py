import random

import pytest

from agl.errors import AdapterError
from agl.semconv import AGL_VIRTUAL
from agl_records.calls.span_tree import VIRTUAL_ROOT, SpanNode


def shape(node: SpanNode) -> object:
    return node.name if not node.children else (node.name, [shape(c) for c in node.children])


def test_spans_hang_under_their_parents_in_order_of_start(trace):
    root = trace.span("root")
    trace.span("second", parent_id=root.span_id, start_time=20.0)
    trace.span("first", parent_id=root.span_id, start_time=10.0)
    assert shape(SpanNode.tree(trace.spans)) == ("root", ["first", "second"])


def test_a_missing_parent_and_a_missing_root_are_made_up(trace):
    trace.span("a", parent_id="f" * 16, start_time=1.0, end_time=2.0)
    trace.span("b", parent_id="f" * 16, start_time=3.0, end_time=4.0)
    trace.span("alone", start_time=9.0)
    root = SpanNode.tree(trace.spans)
    assert shape(root) == (VIRTUAL_ROOT, [(AGL_VIRTUAL, ["a", "b"]), "alone"])
    assert (root.children[0].start_time, root.children[0].end_time) == (1.0, 4.0)


def test_parents_that_go_in_a_circle_lose_no_span(trace):
    trace.span("a", span_id="a" * 16, parent_id="b" * 16)
    trace.span("b", span_id="b" * 16, parent_id="a" * 16)
    trace.span("self", span_id="c" * 16, parent_id="c" * 16)
    assert sorted(n.name for n in SpanNode.tree(trace.spans).walk() if n.span) == ["a", "b", "self"]


def test_no_spans_are_an_error():
    with pytest.raises(AdapterError, match="got none"):
        SpanNode.tree([])


def test_detached_spans_move_to_the_tightest_span_around_them(trace):
    root = trace.span("root", start_time=0.0, end_time=100.0)
    trace.span("agent", parent_id=root.span_id, start_time=10.0, end_time=50.0)
    trace.span("tool", parent_id=trace.spans[1].span_id, start_time=20.0, end_time=40.0)
    trace.span("call", parent_id=root.span_id, start_time=25.0, end_time=30.0)
    trace.span("later", parent_id=root.span_id, start_time=60.0, end_time=70.0)
    tree = SpanNode.tree(trace.spans)
    tree.repair()
    assert shape(tree) == ("root", [("agent", [("tool", ["call"])]), "later"])


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("x", {"agent.name": "writer"}),
        ("x", {"agentops.span.kind": "agent", "operation.name": "writer"}),
        ("x", {"recipient_agent_type": "writer"}),
        ("x", {"langchain.chain.type": "writer"}),
        ("x", {"executor.id": "writer"}),
        ("x", {"type": "agent", "agentlightning.operation.input.name": "writer"}),
        ("langchain.Chain.invoke", {"lc_name": "writer"}),
        ("x", {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "writer"}),
    ],
)
def test_frameworks_name_their_agents(trace, name, attributes):
    trace.span(name, attributes)
    assert SpanNode.tree(trace.spans).agent_name == "writer"


@pytest.mark.parametrize(
    "attributes",
    [
        {"agentops.span.kind": "tool", "operation.name": "writer"},
        {"lc_name": "writer"},
        {"gen_ai.operation.name": "chat", "gen_ai.agent.name": "writer"},
    ],
)
def test_other_spans_name_no_agent(trace, attributes):
    trace.span("x", attributes)
    assert SpanNode.tree(trace.spans).agent_name is None


def as_defined(top):
    """``repair`` below ``top`` by its words: each child looks at all nodes."""
    nodes = [node for node in top.walk() if node is not top]

    def width(node):
        return (node.end_time or 0.0) - (node.start_time or 0.0)

    for child in list(top.children):
        if len(top.children) == 1:
            return
        around = [
            node
            for node in nodes
            if node.start_time <= child.start_time
            and node.end_time >= child.end_time
            and width(node) > width(child)
            and not node.is_within(child)
        ]
        if home := min(around, key=width, default=None):
            top.children.remove(child)
            home.add(child)
            home.children.sort(key=lambda node: node.start_time)


def some_tree(seed):
    """A root with two children and up to twenty nodes below, whose times often are the same."""
    drawn = random.Random(seed)
    nodes = [SpanNode("root")]
    for number in range(drawn.randint(2, 20)):
        start = drawn.randint(0, 12) / 2
        node = SpanNode(str(number), start_time=start, end_time=start + drawn.randint(0, 8) / 2)
        above = nodes[0] if number < 2 or drawn.random() < 0.7 else drawn.choice(nodes)
        above.add(node)
        nodes.append(node)
    return nodes[0]


def test_detached_spans_go_where_looking_at_all_nodes_puts_them():
    for seed in range(500):
        found, expected = some_tree(seed), some_tree(seed)
        found.repair()
        as_defined(expected)
        assert shape(found) == shape(expected), seed
