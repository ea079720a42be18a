"""Answers that keep to a form: JSON, calls of tools. The first needs the package ``llguidance``.

Calls of tools are read in the form that the chat templates of Qwen, Hermes and others show them in:
``<tool_call>{"name": ..., "arguments": ...}</tool_call>``.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, Literal, cast

from pydantic import Field

from agl.errors import ConfigError, install_line
from agl.utils.json_values import parse_json
from agl.utils.text import shorten
from agl_models.completions import RequestError, TextRequest
from agl_models.sampling.sequences import Constraint

LARGEST_MULTIPLE = 10_000
CALL, CALL_END = "<tool_call>", "</tool_call>"
_CALLS = re.compile(rf"\s*{CALL}\s*(\{{.*?\}})\s*{CALL_END}\s*", re.DOTALL)


class FormRequest(TextRequest):
    """A request to a server that finds calls of tools, and holds answers to a form."""

    tools: list[dict[str, Any]] | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] = Field(default_factory=lambda: {"type": "text"})

    @property
    def used_tools(self) -> list[dict[str, Any]] | None:
        """Definitions of the tools that the model may call."""
        return None if self.tool_choice == "none" else self.tools or None


@dataclass
class Forms:
    """What answers of one model, with a tokenizer that ``llguidance`` knows, can be held to."""

    tokenizer: Any
    vocabulary_size: int
    end_token_ids: frozenset[int]

    @cached_property
    def _guide(self) -> Any:
        try:
            from llguidance.hf import from_tokenizer
        except ImportError as error:
            raise ConfigError(
                f"holding an answer to a form needs {error.name!r}, which is not installed. Run: "
                f"{install_line('agl-models[forms]')}"
            ) from error
        if not self.end_token_ids:
            raise ConfigError("the model has no token that ends an answer")
        try:
            size, ends = self.vocabulary_size, sorted(self.end_token_ids)
            return from_tokenizer(self.tokenizer, n_vocab=size, eos_token=ends)
        except Exception as error:
            raise ConfigError(
                f"llguidance cannot read the tokenizer {type(self.tokenizer).__name__}: {error}"
            ) from error

    def constraint(self, request: FormRequest) -> Callable[[], Constraint] | None:
        """What makes the constraint of each choice of a request; None where there is none.

        Raises:
            RequestError: The request asks for what cannot be done.
        """
        name, grammar = _grammar(request)
        if request.used_tools and CALL not in str(self.tokenizer.chat_template):
            raise RequestError(
                400,
                f"'tools': the model's chat template does not show calls as {CALL}, the only form "
                "that this server reads; describe the actions in the messages and read them from "
                "the text, or take a model whose template does",
            )
        if grammar is None:
            return None
        try:
            guide = self._guide
        except ConfigError as error:
            raise RequestError(400, f"{name!r}: this server cannot do that: {error}") from error
        from llguidance import LLMatcher

        if problem := LLMatcher.validate_grammar(grammar, guide):
            raise RequestError(400, f"{name!r}: {problem}")
        return lambda: _Guided(LLMatcher(guide, grammar), name)


class _Guided:
    """A ``Constraint``."""

    def __init__(self, matcher: Any, name: str) -> None:
        self._matcher = matcher
        self._name = name

    def allowed(self) -> bytes:
        """The bits of the matcher."""
        try:
            bits = self._matcher.compute_bitmask()
        except ValueError as error:
            raise self._refused(str(error)) from error
        if self._matcher.is_error():  # one of llguidance's limits of a step, as a rule
            raise self._refused(self._matcher.get_error())
        return bits

    def accept(self, token_id: int) -> None:
        """Go on in the grammar."""
        if not self._matcher.consume_token(token_id):
            raise self._refused(f"token {token_id} was refused: {self._matcher.get_error()}")

    def _refused(self, why: str) -> RequestError:
        why = shorten(why.splitlines()[0] if why else "llguidance gives no reason", 200)
        return RequestError(400, f"{self._name!r}: the answer cannot be held to this form: {why}")


def _grammar(request: FormRequest) -> tuple[str, str | None]:
    """The field that asks for a form, and the form as ``llguidance`` takes it."""
    tools = _tools_that_must_be_called(request)
    form: dict[str, Any] = request.response_format
    kind = form.get("type")
    if kind != "text" and request.used_tools:
        raise RequestError(
            400, "'response_format': an answer cannot be held to it while it may call 'tools'"
        )
    if tools:
        _check_multiples("tools", [tool.get("parameters") for tool in tools])
        many = "" if request.parallel_tool_calls is False else " (one)*"
        each = " | ".join(f"tool{n}" for n in range(len(tools)))
        lines = [f"start: one{many}", f'one: "{CALL}\\n" ({each}) "\\n{CALL_END}"']
        for number, tool in enumerate(tools):
            opening = f'{{"name": {json.dumps(tool["name"])}, "arguments": '
            lines.append(f'tool{number}: {json.dumps(opening)} arguments{number} "}}"')
            arguments = tool.get("parameters") or {"type": "object"}
            lines.append(f"arguments{number}: %json {json.dumps(arguments)}")
        return "tool_choice", "\n".join(lines)
    if request.used_tools and request.parallel_tool_calls is False:
        raise RequestError(
            400,
            "'parallel_tool_calls': false holds only where 'tool_choice' is 'required' or a tool",
        )
    match kind:
        case "text":
            return "response_format", None
        case "json_object":
            schema: Any = {"type": "object"}
        case "json_schema":
            schema = _object(form.get("json_schema")).get("schema")
            if not isinstance(schema, dict):
                raise RequestError(400, "'response_format.json_schema.schema': expected an object")
        case _:
            raise RequestError(
                400,
                f"'response_format.type': expected text, json_object or json_schema; got {kind!r}",
            )
    _check_multiples("response_format", schema)
    return "response_format", f"start: %json {json.dumps(schema)}"


def _check_multiples(name: str, schema: Any) -> None:
    """Refuse multiples that llguidance would count for minutes, in which it lets nothing else run.

    Raises:
        RequestError: Their least common multiple, without its zeros, is above ``LARGEST_MULTIPLE``.
    """
    digits_of_each = [Decimal(str(one)).normalize().as_tuple().digits for one in _multiples(schema)]
    whole = math.lcm(*(int("".join(map(str, digits))) or 1 for digits in digits_of_each))
    if whole > LARGEST_MULTIPLE:
        raise RequestError(
            400,
            f"{name!r}: the least common multiple of its 'multipleOf' has the digits "
            f"{shorten(str(whole))}; this server goes up to {LARGEST_MULTIPLE}. Leave it out, and "
            "check the answer",
        )


def _multiples(schema: Any) -> Iterator[float]:
    if isinstance(schema, list):
        for one in cast("list[Any]", schema):
            yield from _multiples(one)
    elif isinstance(schema, dict):
        for name, value in cast("dict[str, Any]", schema).items():
            if name == "multipleOf" and isinstance(value, int | float):
                yield value
            else:
                yield from _multiples(value)


def _object(value: Any) -> dict[str, Any]:
    """What a client sent; empty where it is no object."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _tools_that_must_be_called(request: FormRequest) -> list[dict[str, Any]]:
    choice, tools = request.tool_choice, list[dict[str, Any]]()
    for tool in request.tools or []:
        tools.append(function := _object(tool.get("function")))
        if tool.get("type") != "function" or "name" not in function:
            raise RequestError(
                400, "'tools': expected objects as {'type': 'function', 'function': {'name': ...}}"
            )
    if choice in (None, "none", "auto"):
        return []
    if isinstance(choice, dict):
        name = _object(choice.get("function")).get("name")
        tools = [tool for tool in tools if tool["name"] == name]
        if not tools:
            raise RequestError(400, f"'tool_choice': no tool {name!r} is among 'tools'")
    if not tools:
        raise RequestError(400, "'tool_choice': 'required' needs 'tools'")
    return tools


def split_calls(
    text: str, prompt_token_ids: Sequence[int], index: int
) -> tuple[str, list[dict[str, Any]]]:
    """An answer's text without the calls of tools in it, and those; what is none stays text.

    Prompt and ``index`` of the choice make the ids of calls: the same request has the same.
    """
    key = hashlib.sha256(f"{index}:{list(prompt_token_ids)}".encode()).hexdigest()[:20]
    calls: list[dict[str, Any]] = []

    def take(match: re.Match[str]) -> str:
        try:
            call = parse_json(match[1])
            function = {"name": call["name"], "arguments": json.dumps(call.get("arguments") or {})}
        except (KeyError, TypeError, ValueError):
            return match[0]
        calls.append({"id": f"call_{key}{len(calls)}", "type": "function", "function": function})
        return ""

    return _CALLS.sub(take, text), calls
