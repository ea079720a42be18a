"""Record rewards, messages, objects and exceptions from inside an agent, and read them back."""

from agentlightning.emitter import reward as _reward_module
from agentlightning.emitter.object import (
    emit_object as emit_object,
    get_object_value as get_object_value,
)
from agl.emitter import (
    emit_annotation as emit_annotation,
    emit_exception as emit_exception,
    emit_message as emit_message,
    find_final_reward as find_final_reward,
    find_reward_spans as find_reward_spans,
    get_message_value as get_message_value,
    get_reward_value as get_reward_value,
    get_rewards_from_span as get_rewards_from_span,
    is_reward_span as is_reward_span,
    operation as operation,
)

# The function hides its module, as in the original.
reward = _reward_module.reward
emit_reward = _reward_module.emit_reward
