"""Messages."""

from agl.emitter import (
    emit_message as emit_message,
    get_message_value as get_message_value,
)
from agl.semconv import (
    AGL_MESSAGE as AGL_MESSAGE,
)
