"""Prompt, response and reward of each turn, from the spans of a tracer (or of the gateway)."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal, get_args

from agl.algorithm.adapter import TraceToTripletBase, Triplet
from agl.emitter import get_reward_value
from agl.errors import AdapterError
from agl.types import UNASSIGNED, Span
from agl.utils.checks import check_choice
from agl.utils.otel import attributes_under, from_attributes
from agl_adapters.credit.rewards import places
from agl_records.calls.matching import compile_match, selects
from agl_records.calls.reader import Recorded
from agl_records.calls.sources.fields import make_call
from agl_records.calls.span_tree import SpanNode, in_time, ordered
from agl_records.final_rewards import graded_only
from agl_records.row_builder import image_urls

RewardMatch = Literal["first_occurrence", "first_sibling"]
ANY_AGENT = "*"
"""Name of the agent where no span says which one it is."""


@dataclass
class Turn:
    """A model call at its place in the tree."""

    record: Recorded
    place: SpanNode
    reward: float | None = None


class TracerTraceToTriplet(TraceToTripletBase):
    """Makes one triplet per successful model call, in the order of the tree.

    ``prompt`` has ``token_ids``, ``raw_content`` (messages) and ``image_urls``; ``response`` has
    ``token_ids``, ``raw_content`` and, where known, ``logprobs``; ``metadata`` has ``request``,
    ``response``, ``response_id``, ``agent_name`` and ``call_id``. Token ids are empty where none
    were recorded. A call that failed has no response, and no triplet; nor has one with several
    answers (``n`` above 1) of which nobody says which was used: else the triplet has the one that
    was. One that several spans recorded has one triplet, made of the record that has token ids.

    Args:
        repair_hierarchy: Hang detached spans under the span in whose time they happened.
        llm_call_match: Regular expression, searched in span names: which spans are model calls.
            The default knows the gateway's, AgentOps' and OpenTelemetry's.
        agent_match: Regular expression, searched in agents' names; only calls within a matching
            agent are taken. None takes all, under the name ``*`` outside of any named agent.
        exclude_llm_call_in_reward: Leave out calls below a span that holds a reward (a judge).
        reward_match: ``first_occurrence``: a reward goes to the last call before it, by number,
            that has none yet. ``first_sibling``: the same among the children of one span. Spans
            without numbers count in the order given.

    Raises:
        ConfigError: A wrong regular expression, or an unknown ``reward_match``.
    """

    def __init__(
        self,
        repair_hierarchy: bool = True,
        llm_call_match: str = r"openai\.chat\.completion|^chat\b",
        agent_match: str | None = None,
        exclude_llm_call_in_reward: bool = True,
        reward_match: RewardMatch = "first_occurrence",
    ) -> None:
        check_choice("TracerTraceToTriplet", get_args(RewardMatch), reward_match=reward_match)
        self.repair_hierarchy = repair_hierarchy
        self.llm_call_match = compile_match(llm_call_match, "TracerTraceToTriplet: llm_call_match")
        self.agent_match = compile_match(agent_match, "TracerTraceToTriplet: agent_match")
        self.exclude_llm_call_in_reward = exclude_llm_call_in_reward
        self.reward_match = reward_match

    def adapt(self, source: Sequence[Any], /) -> list[Triplet]:
        """Triplets of one attempt.

        Args:
            source: Spans, or finished spans of the OpenTelemetry SDK.

        Raises:
            AdapterError: There are no spans, or a call cannot be read.
        """
        return [triplet_of(turn) for turn in self.turns(source)]

    def turns(self, source: Sequence[Any], /) -> list[Turn]:
        """The calls that become triplets, with their rewards; see ``adapt``."""
        root = SpanNode.tree(in_time(as_span(span) for span in source))
        if self.repair_hierarchy:
            root.repair()
        return self.turns_in(root)

    def turns_in(self, root: SpanNode) -> list[Turn]:
        """The same, of a tree that is left as it is."""
        spans = in_time(node.span for node in root.walk() if node.span)
        records = [record for node in root.walk() if (record := self._record(node))]
        judged = root.rewards_above() if self.exclude_llm_call_in_reward else {}
        turns = [
            Turn(
                Recorded.merged(group),
                next((r.node for r in group if not r.is_gateways), group[0].node),
            )
            for group in Recorded.by_call(records)
            if not any(id(record.node) in judged for record in group)
        ]
        # By number, as it is later calls that say which of several answers was used.
        in_order = sorted(turns, key=lambda turn: turn.record.call.sequence_id)
        settled = Recorded.with_choices([turn.record for turn in in_order], spans)
        for turn, record in zip(in_order, settled, strict=True):
            turn.record = record
        turns = [
            turn
            for turn in turns
            if turn.record.call.error is None
            and not turn.record.call.unchosen
            and selects(self.agent_match, turn.record.call.agent_name)
        ]
        order = places(ordered(spans))
        counting = {span.span_id for span in graded_only(spans)}
        if self.reward_match == "first_occurrence":
            give_rewards(root.walk(), turns, order, counting)
        else:
            for parent in root.walk():
                siblings = [turn for turn in turns if turn.place.parent is parent]
                give_rewards(parent.children, siblings, order, counting)
        return turns

    def _record(self, node: SpanNode) -> Recorded | None:
        if node.span is None or node.span.late or not selects(self.llm_call_match, node.name):
            return None
        record = Recorded.of(node)
        if record is None:
            return Recorded(make_call(node.span, agent_name=node.agent_around), node)
        if record.malformed is not None:
            raise AdapterError(record.malformed)
        return record


def as_span(span: Any) -> Span:
    """A span of the store as it is, one of the OpenTelemetry SDK without rollout and number."""
    return span if isinstance(span, Span) else Span.from_opentelemetry(span, "", "", UNASSIGNED)


def give_rewards(
    nodes: Iterable[SpanNode], turns: Sequence[Turn], order: Mapping[str, int], counting: Set[str]
) -> None:
    """Each reward among ``nodes`` to the last turn before it that has none.

    Args:
        nodes: Those whose rewards are given.
        turns: Those that may get one.
        order: Span id -> its place in the order of numbers.
        counting: Ids of the spans whose rewards count.
    """
    with_reward = [
        (order[node.span.span_id], value)
        for node in nodes
        if node.span is not None
        and node.span.span_id in counting
        and (value := get_reward_value(node.span)) is not None
    ]
    places = {id(turn): order[turn.place.span.span_id] for turn in turns if turn.place.span}
    for place, value in sorted(with_reward):
        open_turns = [
            turn for turn in turns if turn.reward is None and places.get(id(turn), place) < place
        ]
        if open_turns:
            max(open_turns, key=lambda turn: places[id(turn)]).reward = value


def triplet_of(turn: Turn) -> Triplet:
    """The triplet of a turn."""
    call = turn.record.call
    attributes = turn.record.node.span.attributes if turn.record.node.span else {}
    response: dict[str, Any] = {
        "token_ids": call.response_token_ids or [],
        "raw_content": [call.response] if call.response else [],
    }
    if call.response_logprobs:
        response["logprobs"] = [{"logprob": logprob} for logprob in call.response_logprobs]
    return Triplet(
        prompt={
            "token_ids": call.prompt_token_ids or [],
            "raw_content": call.messages,
            "image_urls": image_urls(call.messages),
        },
        response=response,
        reward=turn.reward,
        metadata={
            "request": from_attributes(attributes_under(attributes, "gen_ai.request")),
            "response": from_attributes(attributes_under(attributes, "gen_ai.response")),
            "response_id": call.response_id,
            "agent_name": call.agent_name or ANY_AGENT,
            "call_id": call.call_id,
        },
    )
