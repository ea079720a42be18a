"""AgentOps' instrumentation."""

from typing import Any

from agentlightning._names import refusing
from agentlightning.tracer.base import WithRoot
from agl.errors import ConfigError
from agl_tracers import AgentOpsTracer as _AgentOpsTracer


@refusing({"init_worker and teardown_worker do it": "instrument uninstrument"})
class AgentOpsTracer(WithRoot, _AgentOpsTracer):
    """agl's, with 0.3's parameters, and with the span that holds all others of a trace.

    Args:
        agentops_managed: True; ``agentops.init`` is never called.
        instrument_managed: False instruments nothing, which is then yours to do.
        daemon: It has no effect: there is no server of AgentOps.

    Raises:
        BrokenComponentError: AgentOps is not installed, or in another version.
        ConfigError: ``agentops_managed`` is False.
    """

    def __init__(
        self, *, agentops_managed: bool = True, instrument_managed: bool = True, daemon: bool = True
    ) -> None:
        if not agentops_managed:
            raise ConfigError(
                "AgentOpsTracer: agentops_managed=False is not supported: nothing is sent to "
                "AgentOps. Leave it out; or call agentops.init yourself and use OtelTracer"
            )
        super().__init__(libraries=None if instrument_managed else ())

    def get_langchain_handler(self, tags: list[str] | None = None) -> Any:
        """See agl's ``AgentOpsTracer``.

        Raises:
            ConfigError: There are ``tags``.
        """
        if tags:
            raise ConfigError(
                f"AgentOpsTracer.get_langchain_handler: tags={tags!r} is not supported; give them "
                "to the agent, in its config, or emit an annotation with make_tag_attributes"
            )
        return super().get_langchain_handler()

    get_langchain_callback_handler = get_langchain_handler

    def root_of(self, label: str) -> tuple[str, dict[str, Any]]:
        return f"{label}.session", {"agentops.span.kind": "session", "operation.name": label}
