"""Prompt, response and reward of each turn; ``TraceTree`` is 0.3's face of agl's tree of spans."""

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

from pydantic import BaseModel

from agentlightning._names import refusing
from agl.algorithm.adapter import TraceToTripletBase as TraceToTripletBase, Triplet
from agl.emitter import get_reward_value
from agl.errors import ConfigError
from agl.semconv import AGL_VIRTUAL
from agl.types import Span
from agl_adapters import LlmProxyTraceToTriplet as LlmProxyTraceToTriplet
from agl_adapters.triplets import (
    TracerTraceToTriplet as _TracerTraceToTriplet,
    Turn,
    as_span,
    triplet_of,
)
from agl_records.calls.span_tree import SpanNode


class RewardMatchPolicy(StrEnum):
    """Which call a reward goes to."""

    FIRST_OCCURRENCE = "first_occurrence"
    """The last one before it that has none."""
    FIRST_SIBLING = "first_sibling"
    """The same, among the children of one span."""


def _as_0_3(turn: Turn) -> Triplet:
    """The triplet of a turn: what was not recorded is None, and the answer says why it ended."""
    triplet, call = triplet_of(turn), turn.record.call
    answers = triplet.response["raw_content"]
    if call.finish_reason is not None:
        answers = [{**answer, "finish_reason": call.finish_reason} for answer in answers]
    return triplet.model_copy(
        update={
            "prompt": {**triplet.prompt, "raw_content": triplet.prompt["raw_content"] or None},
            "response": {**triplet.response, "raw_content": answers or None},
            "metadata": {
                name: value or None if name in ("request", "response") else value
                for name, value in triplet.metadata.items()
            },
        }
    )


@refusing(
    {
        "use to_trajectory(), which finds the calls and gives them their rewards": (
            "extract_prompt_image_urls find_llm_calls match_rewards maybe_reward_dict "
            "span_to_triplet"
        )
    }
)
class TraceTree:
    """A span and what happened within it.

    Args:
        id: Of the span.
        span: The span.
        children: What happened within it.
    """

    def __init__(self, id: str, span: Span, children: "list[TraceTree] | None" = None) -> None:
        self.id = id
        self.span = span
        self.children = children or []

    @classmethod
    def from_spans(cls, spans: Sequence[Any]) -> "TraceTree":
        """Link spans by their parents; see ``agl_records.SpanNode.tree``.

        Raises:
            AdapterError: There are no spans.
        """
        return cls._of(SpanNode.tree([as_span(span) for span in spans]))

    @classmethod
    def _of(cls, node: SpanNode) -> "TraceTree":
        first = node.children[0].span if node.name == AGL_VIRTUAL else None
        span = node.span or Span.from_attributes(
            name=node.name,
            attributes={},
            span_id=first and first.parent_id,  # of the span that is not there
            start_time=node.start_time,
            end_time=node.end_time,
        )
        is_root = node.span is None and node.name != AGL_VIRTUAL
        return cls(node.name if is_root else span.span_id, span, list(map(cls._of, node.children)))

    def _node(self) -> SpanNode:
        node = SpanNode(self.span.name, self.span, [], None, self.start_time, self.end_time)
        for child in self.children:
            node.add(child._node())
        return node

    @property
    def start_time(self) -> float | None:
        return self.span.start_time

    @property
    def end_time(self) -> float | None:
        return self.span.end_time

    def add_child(self, child: "TraceTree") -> None:
        self.children.append(child)

    def traverse(self) -> "list[TraceTree]":
        """This one and all below it, each before its children."""
        return [self, *(tree for child in self.children for tree in child.traverse())]

    def find_id(self, id: str) -> "TraceTree | None":
        """The one of that id, here or below."""
        return next((tree for tree in self.traverse() if tree.id == id), None)

    def names_tuple(self) -> tuple[str, list[Any]]:
        """Its name, with that of the agent that it is, and the same of each child."""
        agent = self.agent_name()
        name = self.span.name if agent is None else f"{self.span.name} [{agent}]"
        return name, [child.names_tuple() for child in self.children]

    def to_json(self) -> dict[str, Any]:
        """Id, span and children as plain data."""
        return {
            "id": self.id,
            "span": self.span.model_dump(),
            "children": [child.to_json() for child in self.children],
        }

    def agent_name(self) -> str | None:
        """The agent that this span itself says it is."""
        return self._node().agent_name

    def is_reward_span(self) -> bool:
        return get_reward_value(self.span) is not None

    def repair_hierarchy(self) -> None:
        """Hang detached spans under those in whose time they happened."""
        root = self._node()
        root.repair()
        trees = {id(tree.span): tree for tree in self.traverse()}
        for node in root.walk():
            trees[id(node.span)].children = [trees[id(child.span)] for child in node.children]

    def to_trajectory(
        self,
        llm_call_match: str = r"openai\.chat\.completion",
        agent_match: str | None = None,
        exclude_llm_call_in_reward: bool = True,
        dedup_llm_call: bool = True,
        reward_match: RewardMatchPolicy = RewardMatchPolicy.FIRST_OCCURRENCE,
        final_reward: float | None = None,
        _skip_empty_token_spans: bool = False,
    ) -> list[Any]:
        """Triplets of the model calls; see ``TracerTraceToTriplet``.

        Args:
            dedup_llm_call: True; a call that several spans recorded is always one.
            final_reward: Of the last triplet.

        Raises:
            ConfigError: ``dedup_llm_call`` is False.
        """
        if not dedup_llm_call:
            raise ConfigError(
                "TraceTree.to_trajectory: dedup_llm_call=False is not supported: a call that "
                "several spans recorded would be trained several times"
            )
        adapter = TracerTraceToTriplet(
            False,
            llm_call_match,
            agent_match,
            exclude_llm_call_in_reward,
            reward_match,
            _skip_empty_token_spans,
        )
        triplets = adapter._triplets_of(adapter.turns_in(self._node()))
        if final_reward is not None and triplets:
            triplets[-1] = triplets[-1].model_copy(update={"reward": final_reward})
        return triplets

    def visualize(self, filename: str, interested_span_match: str | None = None) -> None:
        """Draw the tree into ``filename.png``, with Graphviz.

        Args:
            filename: Without its ending.
            interested_span_match: Regular expression: only spans whose names match, and those above
                them.

        Raises:
            ConfigError: The package graphviz, or its program ``dot``, is not installed.
        """
        try:
            import graphviz  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError:
            raise ConfigError(
                "TraceTree.visualize draws with graphviz, which is not installed. Run: pip install "
                "graphviz, and install the program dot; or print names_tuple()"
            ) from None
        picture: Any = graphviz.Digraph(format="png")
        self._draw(picture, interested_span_match)
        try:
            picture.render(filename, cleanup=True)
        except graphviz.ExecutableNotFound:
            raise ConfigError(
                "TraceTree.visualize: the program dot of Graphviz is not installed; install it "
                "with the system's packages, or print names_tuple()"
            ) from None

    def _draw(self, picture: Any, match: str | None) -> bool:
        drawn = [child for child in self.children if child._draw(picture, match)]
        if not (drawn or match is None or re.search(match, self.span.name)):
            return False
        seconds = (self.end_time or 0.0) - (self.start_time or 0.0)
        picture.node(self.id, f"{self.span.name}\n{self.id}\n{seconds:.3f} s")
        for child in drawn:
            picture.edge(self.id, child.id)
        return True


class Transition(BaseModel):
    """One step of an agent: what it saw, what it did, and what that was worth."""

    state: list[int]
    action: list[int]
    response_id: str | None
    agent_name: str
    reward: float | None


class TracerTraceToTriplet(_TracerTraceToTriplet):
    """agl's, with 0.3's default of ``llm_call_match``, policies as members, and a picture.

    ``_skip_empty_token_spans`` leaves out the turns without token ids.
    """

    def __init__(
        self,
        repair_hierarchy: bool = True,
        llm_call_match: str = r"openai\.chat\.completion",
        agent_match: str | None = None,
        exclude_llm_call_in_reward: bool = True,
        reward_match: RewardMatchPolicy = RewardMatchPolicy.FIRST_OCCURRENCE,
        _skip_empty_token_spans: bool = False,
    ) -> None:
        super().__init__(
            repair_hierarchy,
            llm_call_match,
            agent_match,
            exclude_llm_call_in_reward,
            RewardMatchPolicy(reward_match).value,
        )
        self._skip_empty_token_spans = _skip_empty_token_spans

    def adapt(self, source: Sequence[Any], /) -> list[Any]:
        """Triplets of one attempt; see agl's ``TracerTraceToTriplet``."""
        return self._triplets_of(self.turns(source))

    def _triplets_of(self, turns: Iterable[Turn]) -> list[Triplet]:
        """The triplets of turns, as 0.3 had them."""
        triplets = list(map(_as_0_3, turns))
        if not self._skip_empty_token_spans:
            return triplets
        return [t for t in triplets if t.prompt["token_ids"] and t.response["token_ids"]]

    def visualize(
        self,
        source: Sequence[Any],
        /,
        filename: str = "trace_tree",
        interested_span_match: str | None = None,
    ) -> TraceTree:
        """Draw the tree into ``filename.png``; see ``TraceTree.visualize``."""
        tree = TraceTree.from_spans(source)
        if self.repair_hierarchy:
            tree.repair_hierarchy()
        tree.visualize(filename, interested_span_match)
        return tree
