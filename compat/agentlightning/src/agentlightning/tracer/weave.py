"""Weave's calls."""

from typing import Any

from agentlightning._names import refusing
from agentlightning.tracer.base import WithRoot
from agl.errors import ConfigError
from agl_tracers import WeaveTracer as _WeaveTracer


@refusing(
    {
        "init_worker and teardown_worker do it": "instrument uninstrument",
        "Weave's calls become spans by themselves": "complete_call_callback complete_call_handler "
        "convert_call_to_span partial_call_callback partial_call_handler",
    }
)
class WeaveTracer(WithRoot, _WeaveTracer):
    """agl's, with 0.3's parameters, and with the span that holds all others of a trace.

    Args:
        project_name: It has no effect: ``weave.init`` is never called.
        weave_user_settings: None; set Weave's environment variables.
        instrument_managed: False instruments nothing but ``@weave.op``.

    Raises:
        BrokenComponentError: Weave is not installed, or in another version.
        ConfigError: ``weave_user_settings`` is given.
    """

    def __init__(
        self,
        *,
        project_name: str | None = None,
        weave_user_settings: Any = None,
        instrument_managed: bool = True,
    ) -> None:
        if weave_user_settings is not None:
            raise ConfigError(
                "WeaveTracer: weave_user_settings is not supported, as weave.init is never called; "
                "set Weave's environment variables (WEAVE_CAPTURE_CODE and its kind) instead"
            )
        super().__init__(libraries=None if instrument_managed else ())
