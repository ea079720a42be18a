"""``per_agent``: to each agent the reward that names it."""

from collections.abc import Sequence

from agl.emitter import PRIMARY_REWARD
from agl.types import Span
from agl_adapters.credit.final import final_credit
from agl_adapters.credit.rewards import Reward, rewards_of, unreadable
from agl_records.calls.span_tree import SpanNode
from agl_records.credit import CreditRule
from agl_records.training_data import ModelCall
from agl_records.types import Credit


class PerAgent(CreditRule):
    """A call gets the last reward of its own agent, and is compared with that agent's calls only.

    A reward is an agent's when one of its dimensions has the agent's name
    (``emit_reward({"writer": 1.0, "critic": 0.0}, primary_key="writer")``), or when it was emitted
    within that agent's span. An agent that no reward names gets the last reward that is nobody's,
    and none where there is no such reward. A number without a name (``emit_reward(1.0)``, or what
    the agent returns) has the one dimension ``primary``, which names nobody, whoever is called so.
    """

    uses_intermediate = False

    def assign(self, calls: Sequence[ModelCall], spans: Sequence[Span]) -> list[Credit]:
        """One credit per agent, to each of its calls."""
        agents = {call.agent_name for call in calls}
        own: dict[str | None, Credit] = {}
        shared: list[Reward] = []
        within = _agents_around(spans)
        for reward in rewards_of(spans):
            names = reward.dimensions.keys()
            named = (
                [] if names == {PRIMARY_REWARD} else [agent for agent in agents if agent in names]
            )
            around = within.get(reward.span.span_id)
            if named:
                for agent in named:
                    own[agent] = _credit(agent, reward.dimensions[str(agent)], reward)
            elif around in agents and around is not None:
                malformed = unreadable([reward])
                own[around] = malformed or _credit(around, reward.value, reward)
            else:
                shared.append(reward)
        team = final_credit(shared)
        return [own.get(call.agent_name) or _of_team(call.agent_name, team) for call in calls]


def _credit(agent: str | None, value: float, reward: Reward) -> Credit:
    return Credit(
        reward=value,
        sources=[reward.span.span_id],
        because=f"the last reward of agent {agent!r} is {value:.4g}",
        group=f"agent {agent}",
    )


def _of_team(agent: str | None, team: Credit) -> Credit:
    because = f"no reward names agent {agent!r}; of those that name no agent, {team.because}"
    return team.model_copy(update={"because": because, "group": f"agent {agent}"})


def _agents_around(spans: Sequence[Span]) -> dict[str, str]:
    """Span id -> the agent that it says it is, or within which it stands."""
    if not spans:
        return {}
    found: dict[str, str] = {}
    for node in SpanNode.tree(spans).walk():
        if node.span is not None:
            name = node.agent_name or node.agent_around
            if name is not None:
                found[node.span.span_id] = name
    return found
