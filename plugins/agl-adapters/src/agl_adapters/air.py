"""AIR, automatic intermediate rewarding: rewards out of what tools did, without asking the agent.

A rule looks at a span of a tool or an operation and gives a number or nothing. The rewards exist
while rows are built; the store keeps the agent's spans as they are.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, cast

from agl.emitter import reward_attributes
from agl.errors import ConfigError
from agl.plugins.build import import_attribute
from agl.semconv import AGL_ANNOTATION, AGL_OPERATION, LightningSpanAttributes
from agl.types import Span
from agl.utils.json_values import parse_json
from agl.utils.otel import attributes_under, from_attributes
from agl_records.calls.matching import compile_match, selects

AIR_RULE = "agentlightning.air.rule"
"""Attribute of the reward spans made here: which rule."""

Amount = float | str | Callable[..., float | None] | None
"""A number, a function, or ``module:function``."""

_TOOL_NAMES = (
    "gen_ai.tool.name",
    "tool.name",
    "tool_name",
    LightningSpanAttributes.OPERATION_NAME.value,
    "traceloop.entity.name",
)
_KINDS = ("openinference.span.kind", "agentops.span.kind", "traceloop.span.kind")
_INPUTS = ("gen_ai.tool.call.arguments", "tool.parameters", "input.value", "traceloop.entity.input")
_OUTPUTS = ("gen_ai.tool.call.result", "tool.result", "output.value", "traceloop.entity.output")
_EXIT_CODES = ("process.exit_code", "process.exit.code", "exit_code", "returncode")


class AutoRewards:
    """Which spans become which rewards.

    A number is given as it is; a function decides, and None from it means no reward.

    Args:
        on_tool_success: For a tool that ended well; a function gets ``(tool_name, output)``.
        on_tool_failure: For one that failed; a function gets ``(tool_name, error)``.
        on_code_execution: For tools that run code, in place of the two above: a number is given
            when the code exits with 0; a function gets ``(code, result, exit_code)``.
        custom: Functions that get each ``Span`` of the attempt.
        code_match: Regular expression, searched in tools' names: which of them run code.
        enabled: False makes no rewards, and leaves the rules in place.

    Raises:
        ConfigError: A rule is no number and no function.
    """

    def __init__(
        self,
        on_tool_success: float | str | Callable[..., float | None] | None = None,
        on_tool_failure: float | str | Callable[..., float | None] | None = None,
        on_code_execution: float | str | Callable[..., float | None] | None = None,
        custom: Sequence[str | Callable[[Span], float | None]] = (),
        code_match: str = r"(?i)(^|[_\W])(python|code|exec\w*|interpreter|bash|shell)($|[_\W])",
        enabled: bool = True,
    ) -> None:
        self.on_tool_success = _amount("on_tool_success", on_tool_success)
        self.on_tool_failure = _amount("on_tool_failure", on_tool_failure)
        self.on_code_execution = _amount("on_code_execution", on_code_execution)
        self.custom = [_function("custom", rule) for rule in custom]
        self.code_match = compile_match(code_match, "air.code_match")
        self.enabled = enabled

    def rewards(self, spans: Sequence[Span]) -> list[Span]:
        """One reward span per rule that gives something, at the time and place of its span."""
        if not self.enabled:
            return []
        found: list[Span] = []
        for span in spans:
            rule, value = self._of_tool(span)
            if value is not None:
                found.append(_reward_span(span, rule, value))
            for number, custom in enumerate(self.custom):
                value = custom(span)
                if value is not None:
                    found.append(_reward_span(span, f"custom {number}", value))
        return found

    def _of_tool(self, span: Span) -> tuple[str, float | None]:
        name = tool_name(span)
        if name is None:
            return "", None
        error = tool_error(span)
        output = _first(span, _OUTPUTS, LightningSpanAttributes.OPERATION_OUTPUT)
        if self.on_code_execution is not None and selects(self.code_match, name):
            code = _first(span, _INPUTS, LightningSpanAttributes.OPERATION_INPUT)
            exit_code = _exit_code(span, output, error)
            if callable(self.on_code_execution):
                return "on_code_execution", self.on_code_execution(code, output, exit_code)
            return "on_code_execution", self.on_code_execution if exit_code == 0 else None
        if error is None:
            return "on_tool_success", _value(self.on_tool_success, name, output)
        return "on_tool_failure", _value(self.on_tool_failure, name, error)


def tool_name(span: Span) -> str | None:
    """The name of the tool or operation that a span is, or None."""
    attributes = span.attributes
    is_tool = (
        attributes.get("gen_ai.operation.name") == "execute_tool"
        or any(str(attributes.get(key, "")).lower() == "tool" for key in _KINDS)
        or "tool.name" in attributes
        or (span.name == AGL_OPERATION and not _is_agent_or_model(span))
    )
    if not is_tool:
        return None
    return next((str(attributes[key]) for key in _TOOL_NAMES if attributes.get(key)), span.name)


def tool_error(span: Span) -> str | None:
    """Why a tool failed; None where it did not."""
    if span.status.status_code == "ERROR":
        return span.status.description or "the span has status ERROR"
    error = span.attributes.get("error.type")
    return None if error is None else str(error)


def _is_agent_or_model(span: Span) -> bool:
    output = LightningSpanAttributes.OPERATION_OUTPUT.value
    return span.attributes.get("type") == "agent" or any(
        key.startswith(f"{output}.choices.") for key in span.attributes
    )


def _first(span: Span, keys: Sequence[str], prefix: str) -> Any:
    """What stands under the first of these keys, JSON decoded, or nested under ``prefix``."""
    value = next((span.attributes[key] for key in keys if key in span.attributes), None)
    if value is None:
        nested = from_attributes({"": None, **attributes_under(span.attributes, prefix)})
        whole = nested.pop("", None)
        return whole if whole is not None else nested or None
    if isinstance(value, str):
        try:
            return parse_json(value)
        except ValueError:
            return value
    return value


def _exit_code(span: Span, output: Any, error: str | None) -> int:
    for key in _EXIT_CODES:
        for place in (span.attributes, output if isinstance(output, dict) else {}):
            value = place.get(key)
            if isinstance(value, int):
                return value
    return 0 if error is None else 1


def _amount(what: str, rule: Amount) -> float | Callable[..., float | None] | None:
    if rule is None or (isinstance(rule, int | float) and not isinstance(rule, bool)):
        return rule
    return _function(what, rule)


def _function(what: str, rule: Any) -> Callable[..., float | None]:
    found: Any = import_attribute(rule, f"air.{what}") if isinstance(rule, str) else rule
    if callable(found):
        return cast("Callable[..., float | None]", found)
    raise ConfigError(f"air.{what}: expected a number or a function, got {rule!r}")


def _value(rule: float | Callable[..., float | None] | None, *about: Any) -> float | None:
    return rule(*about) if callable(rule) else rule


def _reward_span(span: Span, rule: str, value: float) -> Span:
    """A reward that began with its span, so that it follows the call which asked for that."""
    return Span.from_attributes(
        name=AGL_ANNOTATION,
        attributes={**reward_attributes(value), AIR_RULE: rule},
        rollout_id=span.rollout_id,
        attempt_id=span.attempt_id,
        sequence_id=span.sequence_id,
        trace_id=span.trace_id,
        span_id=hashlib.sha256(f"{span.span_id} {rule}".encode()).hexdigest()[:16],
        parent_id=span.span_id,
        start_time=span.start_time,
        end_time=span.end_time,
    )
