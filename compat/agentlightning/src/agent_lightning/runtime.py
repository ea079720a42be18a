"""Not there yet: ``air``, ``auto_instrument`` and ``set_config``."""

raise ImportError(
    "agent_lightning.runtime is not there yet. For auto_instrument: calls of the model are "
    "recorded anyway, and agl has tracers for more. For air: agl.emit_reward in the agent, or the "
    "option air of the adapter"
)
