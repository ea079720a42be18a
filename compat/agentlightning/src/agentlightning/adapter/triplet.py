"""Prompt, response and reward of each turn."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from agentlightning.adapter._tree import (
    RewardMatchPolicy as RewardMatchPolicy,
    TraceTree as TraceTree,
    as_0_3,
)
from agl.algorithm.adapter import TraceToTripletBase as TraceToTripletBase
from agl_adapters import (
    LlmProxyTraceToTriplet as LlmProxyTraceToTriplet,
    TracerTraceToTriplet as _TracerTraceToTriplet,
)


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
        triplets = list(map(as_0_3, self.turns(source)))
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
