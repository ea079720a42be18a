"""Record rewards, messages, objects and exceptions from inside an agent, and read them back."""

from agentlightning.emitter import object as _object, reward as _reward
from agl.emitter import *

emit_object, get_object_value = _object.emit_object, _object.get_object_value
# The function hides its module, as in the original.
emit_reward, reward = _reward.emit_reward, _reward.reward
