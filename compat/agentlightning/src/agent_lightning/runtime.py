"""What an agent's script sets."""

from agl_service.runtime import (
    air as air,
    auto_instrument as auto_instrument,
    set_config as set_config,
)
