"""Spans as a tree, mended where instrumentation left it in pieces, and who is the agent where."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from agl.emitter import is_reward_span
from agl.errors import AdapterError
from agl.semconv import AGL_VIRTUAL, ModelCallAttributes as Key
from agl.types import Span
from agl.utils.rewards import reward_problem

VIRTUAL_ROOT = "virtual-root"
_AGENT_OPERATIONS = ("invoke_agent", "create_agent")


def in_time(spans: Iterable[Span]) -> list[Span]:
    """Those that did not come too late; see ``Span.late``."""
    return [span for span in spans if not span.late]


def late_spans(spans: Iterable[Span]) -> list[Span]:
    """Those that came too late, without the mark and each once; none that came in time as well."""
    keyed = [((span.attempt_id, span.span_id), span) for span in spans]
    known = {key for key, span in keyed if not span.late}
    late = {key: span.changed(late=False) for key, span in keyed if span.late and key not in known}
    return [*late.values()]


@dataclass(eq=False)
class SpanNode:
    """A span and what happened within it; without a span for what nobody recorded."""

    name: str
    span: Span | None = None
    children: list["SpanNode"] = field(default_factory=list["SpanNode"])
    parent: "SpanNode | None" = None
    start_time: float | None = None
    end_time: float | None = None

    def add(self, child: "SpanNode") -> None:
        """Put ``child`` under this node."""
        child.parent = self
        self.children.append(child)

    def is_within(self, other: "SpanNode") -> bool:
        """Whether this is ``other`` or something below it."""
        return self is other or any(node is other for node in self.ancestors())

    def ancestors(self) -> Iterator["SpanNode"]:
        """The nodes above this one, nearest first."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    @classmethod
    def tree(cls, spans: Sequence[Span]) -> "SpanNode":
        """Link spans by their parent ids.

        A parent that is referred to and missing becomes a node without a span, as wide as its
        children; several roots get a common one. Siblings stand in the order of their start.

        Raises:
            AdapterError: There are no spans.
        """
        if not spans:
            raise AdapterError("expected the spans of a rollout, got none")
        nodes: dict[tuple[str, str, str], SpanNode] = {}
        for span in ordered(spans):
            key = (span.rollout_id, span.attempt_id, span.span_id)
            node = cls(span.name, span, start_time=span.start_time, end_time=span.end_time)
            nodes.setdefault(key, node)
        roots: list[SpanNode] = []
        for key, node in list(nodes.items()):
            parent_id = node.span.parent_id if node.span else None
            if parent_id is None:
                roots.append(node)
                continue
            parent_key = (key[0], key[1], parent_id)
            parent = nodes.get(parent_key)
            if parent is None:
                parent = nodes[parent_key] = cls(AGL_VIRTUAL)
                roots.append(parent)
            if parent.is_within(node):
                roots.append(node)  # parent ids that go round in a circle: cut it here
            else:
                parent.add(node)
        root = roots[0]
        if len(roots) > 1:
            root = cls(VIRTUAL_ROOT)
            for node in roots:
                root.add(node)
        for node in reversed(list(root.walk())):
            node.children.sort(key=lambda child: child.start_time or 0.0)
            if node.span is None:
                node.start_time = min(
                    _known(child.start_time for child in node.children), default=None
                )
                node.end_time = max(_known(child.end_time for child in node.children), default=None)
        return root

    def walk(self) -> Iterator["SpanNode"]:
        """This node and all below it, each before its children."""
        stack: list[SpanNode] = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))

    def repair(self) -> None:
        """Hang detached spans under the span in whose time they happened.

        From this node down to the first node with several children; each of those moves under the
        node, outside of itself, whose interval encloses its own with the least room to spare. One
        without such a node stays, and so does the last one. Goes by time alone, and so needs one
        clock.
        """
        top = self
        while len(top.children) == 1:
            top = top.children[0]
        if not top.children:
            return
        nodes: dict[tuple[float, float], list[tuple[int, SpanNode]]] = {}
        for number, node in enumerate(top.walk()):
            if node is not top and node.start_time is not None and _width(node) > 0:
                nodes.setdefault((node.start_time, node.end_time or 0.0), []).append((number, node))
        intervals = sorted(nodes)
        ends = list(accumulate((end for _, end in intervals), max))
        # ``ends``: of each interval, the last end up to it; further back none encloses.
        for child in list(top.children) if nodes else ():
            if len(top.children) == 1:
                return
            if child.start_time is None or child.end_time is None:
                continue
            around: list[tuple[float, int, SpanNode]] = []
            at = bisect_right(intervals, (child.start_time, math.inf))
            while at and ends[at - 1] >= child.end_time:
                at -= 1
                start, end = intervals[at]
                if end >= child.end_time and end - start > _width(child):
                    around += [(end - start, number, node) for number, node in nodes[start, end]]
            home = next((one for _, _, one in sorted(around) if not one.is_within(child)), None)
            if home is not None:
                top.children.remove(child)
                home.add(child)
                home.children.sort(key=lambda node: node.start_time or 0.0)

    def rewards_above(self) -> dict[int, frozenset[str]]:
        """The ids (of ``id``) of nodes below spans that hold a reward -> the ids of those spans.

        A reward that cannot be read is one as well: whoever tried to find it was no agent.
        """
        above: dict[int, frozenset[str]] = {}
        for node in self.walk():
            if not node.children:
                continue
            rewards = above.get(id(node), frozenset[str]())
            span = node.span
            if span is not None and (is_reward_span(span) or reward_problem(span)):
                rewards |= {span.span_id}
            if rewards:
                above.update((id(child), rewards) for child in node.children)
        return above

    @property
    def agent_name(self) -> str | None:
        """The agent that this span itself says it is, under the keys of many frameworks."""
        attributes: Mapping[str, Any] = self.span.attributes if self.span else {}
        candidates = [
            attributes.get("agent.name"),
            attributes.get("operation.name")
            if attributes.get("agentops.span.kind") == "agent"
            else None,
            attributes.get("recipient_agent_type"),
            attributes.get("langchain.chain.type"),
            attributes.get("executor.id"),
            attributes.get("agentlightning.operation.input.name")
            if attributes.get("type") == "agent"
            else None,
            attributes.get("lc_name") if self.name.startswith("langchain.Chain.") else None,
            attributes.get(Key.AGENT_NAME)
            if attributes.get(Key.OPERATION) in _AGENT_OPERATIONS
            else None,
            # OpenInference gives some agents no other name than that of the span: "writer.run".
            self.name.partition(".")[0]
            if attributes.get("openinference.span.kind") == "AGENT"
            else None,
        ]
        return next((str(name) for name in candidates if name), None)

    @property
    def agent_around(self) -> str | None:
        """The agent in whose work this span stands: the nearest one above it that has a name."""
        return next((name for above in self.ancestors() if (name := above.agent_name)), None)


def ordered(spans: Sequence[Span]) -> list[Span]:
    """By number; spans without one come last, in the order given."""
    return sorted(spans, key=lambda span: span.sequence_id or math.inf)


def _known(times: Iterator[float | None]) -> list[float]:
    return [time for time in times if time is not None]


def _width(node: SpanNode) -> float:
    if node.start_time is None or node.end_time is None:
        return 0.0
    return node.end_time - node.start_time
