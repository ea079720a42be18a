"""Two agents, of which one's action matters: how many rollouts each credit rule needs.

One policy plays both agents, as one model does: the logits of agent i in state s are a part that
both share plus a part of its own. The picker must choose the right one of 12 actions; what the
talker then does, three times, is of no consequence. The agent emits ``{"picker": r, "talker":
0.0}``, the picker's being the primary. With ``final`` both get r, and the talker's random actions
are praised and blamed for the picker's; with ``per_agent`` the talker's calls have no advantage and
are left out.

Everything between agent and gradient is real: spans, ``TraceToRows``, ``sibling_advantages``. The
policy is a table, and its gradient is written out: for a sampled action a, advantage A and weight w
the logits change by ``lr * w * A * (1[a] - softmax)``; every rollout weighs the same. Counted are
rollouts until the mean reward of 8 steps is 0.9. Each rule has the best of several learning rates,
as leaving calls out makes the steps of the others larger, which is not what is compared.
"""

import argparse
import math
import random
import statistics
from collections.abc import Sequence

import agl
from agl.semconv import AGL_ANNOTATION, MODEL_CALL_SPAN, ModelCallAttributes as Key
from agl.types import Span

STATES, ACTIONS = 6, 12
AGENTS = ("picker", "talker")
TURNS = ("picker", "talker", "talker", "talker")
GROUPS, SIBLINGS = 4, 4
"""Tasks per step, and rollouts per task."""
TARGET, WINDOW = 0.9, 8
LEARNING_RATES = (8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


class Policy:
    """Logits per agent, state and action: shared ones plus own ones."""

    def __init__(self) -> None:
        self.shared = [[0.0] * ACTIONS for _ in range(STATES)]
        self.own = {agent: [[0.0] * ACTIONS for _ in range(STATES)] for agent in AGENTS}

    def probabilities(self, agent: str, state: int) -> list[float]:
        """Softmax of the sum."""
        pairs = zip(self.shared[state], self.own[agent][state], strict=True)
        weights = [math.exp(shared + own) for shared, own in pairs]
        return [weight / sum(weights) for weight in weights]

    def learn(self, agent: str, state: int, action: int, amount: float) -> None:
        """A step along the gradient of the action's log-probability."""
        for other, probability in enumerate(self.probabilities(agent, state)):
            change = amount * ((other == action) - probability)
            self.shared[state][other] += change
            self.own[agent][state][other] += change


def rollout(rollout_id: str, state: int, policy: Policy, draw: random.Random) -> list[Span]:
    """The picker acts, then the talker; the prompt is the state, the answer the action."""
    spans: list[Span] = []
    actions: dict[str, int] = {}
    for agent in TURNS:
        probabilities = policy.probabilities(agent, state)
        action = draw.choices(range(ACTIONS), probabilities)[0]
        actions.setdefault(agent, action)
        call = {
            Key.OPERATION.value: "chat",
            Key.AGENT_NAME.value: agent,
            Key.PROMPT_TOKEN_IDS.value: [state],
            Key.RESPONSE_TOKEN_IDS.value: [action],
            Key.RESPONSE_LOGPROBS.value: [math.log(probabilities[action])],
        }
        spans.append(_span(rollout_id, len(spans) + 1, MODEL_CALL_SPAN, call))
    given = agl.emit_reward(
        {"picker": float(actions["picker"] == state), "talker": 0.0},
        primary_key="picker",
        propagate=False,
    )
    spans.append(_span(rollout_id, len(spans) + 1, AGL_ANNOTATION, given.attributes))
    return spans


def _span(rollout_id: str, number: int, name: str, attributes: agl.Attributes) -> Span:
    return Span.from_attributes(
        name=name,
        attributes=attributes,
        rollout_id=rollout_id,
        attempt_id="at-1",
        sequence_id=number,
        span_id=f"{number:016x}",
        start_time=float(number),
        end_time=number + 0.5,
    )


def rollouts_to_target(credit: str, learning_rate: float, seed: int, limit: int = 6400) -> int:
    """How many rollouts it took; ``limit`` when that was not enough."""
    adapter, policy, draw = agl.TraceToRows(credit=credit), Policy(), random.Random(seed)
    rewards: list[float] = []
    count = 0
    while count < limit:
        got: list[float] = []
        updates: list[tuple[str, int, int, float]] = []
        for _ in range(GROUPS):
            state = draw.randrange(STATES)
            siblings: list[Sequence[agl.TrainingRow]] = []
            for _ in range(SIBLINGS):
                spans = rollout(f"ro-{count}", state, policy, draw)
                got.append(agl.find_final_reward(spans) or 0.0)
                siblings.append(adapter.adapt(spans).rows)
                count += 1
            for rows, advantages in zip(
                siblings, agl.sibling_advantages(siblings, normalise_std=False), strict=True
            ):
                pairs = [(r, a[0].value) for r, a in zip(rows, advantages, strict=True)]
                trained = [(row, value) for row, value in pairs if value != 0.0]
                weight = 1.0 / (GROUPS * SIBLINGS * max(len(trained), 1))
                for row, value in trained:
                    given, action = row.token_ids
                    updates.append((str(row.agent_name), given, action, weight * value))
        for agent, state, action, amount in updates:
            policy.learn(agent, state, action, learning_rate * amount)
        rewards.append(statistics.fmean(got))
        if len(rewards) >= WINDOW and statistics.fmean(rewards[-WINDOW:]) >= TARGET:
            return count
    return limit


def main() -> None:
    """Print rollouts to target per rule, seed and learning rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    for credit in ("final", "per_agent"):
        found = {
            rate: [rollouts_to_target(credit, rate, seed) for seed in seeds]
            for rate in LEARNING_RATES
        }
        for rate, counts in found.items():
            print(f"{credit:<10} lr {rate:<5g} {counts} mean {statistics.fmean(counts):.0f}")
        best = min(found, key=lambda rate: statistics.fmean(found[rate]))
        print(f"{credit:<10} best: lr {best:g}, mean {statistics.fmean(found[best]):.0f} rollouts")


if __name__ == "__main__":
    main()
