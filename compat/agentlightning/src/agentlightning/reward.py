"""Rewards."""

from agentlightning.emitter.reward import (
    emit_reward as emit_reward,
    find_final_reward as find_final_reward,
    find_reward_spans as find_reward_spans,
    get_reward_value as get_reward_value,
    get_rewards_from_span as get_rewards_from_span,
    is_reward_span as is_reward_span,
    reward as reward,
)
