"""What an agent does with a task: its spans as templates, each with when it began and ended."""

import random
from dataclasses import dataclass
from functools import cache
from typing import Any

from agl.semconv import AGL_ANNOTATION, LightningSpanAttributes
from agl.types import OtelResource, Span, TraceStatus
from agl.types.spans import SpanContext
from filling.templates import Holes, span_template

NUM_TASKS = 200
NUM_SCRIPTS = 5
"""Ways in which the agent goes about one task."""
_RUNS_OUT = 0.12
"""Of the answers: so many are cut off."""
_SYSTEM = (
    "You are a careful clerk of a small shop. Think step by step, use the tool calculate for "
    "every sum, and end with the number alone."
)
_GOODS = ("apples", "candles", "notebooks", "pears", "postcards", "ropes", "shirts", "teapots")
_TALK = (
    "first so then left boxes each sold take away which makes remain add the sum again check "
    "count carefully answer because there are still of them after that total shop day"
)


@dataclass(frozen=True)
class Piece:
    """One span of a script."""

    kind: str
    """``root``, ``call``, ``tool`` or ``reward``."""
    name: str
    writer: str
    template: str
    begin: float
    """Seconds after the attempt began."""
    end: float
    parent: bool
    """Whether it hangs below the root."""
    truncated: bool = False
    tokens: int = 0
    """That were sampled."""


@dataclass(frozen=True)
class Script:
    """One way through a task."""

    pieces: tuple[Piece, ...]
    seconds: float
    quality: float
    """Mean reward of it, from 0 to 1."""


def task(number: int) -> dict[str, Any]:
    """A task as a dataset has it; there are ``NUM_TASKS``."""
    draw = random.Random(number)
    boxes, each, good = draw.randint(3, 40), draw.randint(4, 24), draw.choice(_GOODS)
    sold = draw.randint(1, boxes * each - 1)
    return {
        "id": f"shop-{number:04d}",
        "question": f"A shop has {boxes} boxes of {each} {good} each, and {sold} {good} are sold. "
        "How many are left?",
        "answer": boxes * each - sold,
    }


@cache
def script(task_number: int, variant: int, num_spans: int) -> Script:
    """A way through a task, with so many spans at least 2: a call and a reward.

    Args:
        task_number: Which task.
        variant: Which way.
        num_spans: Of the attempt. Beside root and reward, half are model calls.
    """
    draw = random.Random(task_number * 1_000 + variant)
    about = task(task_number)
    is_right = draw.random() < 0.3 + 0.12 * variant
    num_calls = max(1, (num_spans - 1) // 2)
    num_tools = max(0, num_spans - num_calls - 2)
    has_root = num_spans >= num_calls + 2
    pieces: list[Piece] = []
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": _SYSTEM},
        {"role": "user", "content": about["question"]},
    ]
    now = 0.05
    for number in range(num_calls):
        length = round(draw.uniform(0.2, 2.5), 3)
        is_last = number == num_calls - 1
        answer, cut = _answer(draw, about, number, is_last, is_right)
        pieces.append(_call(draw, messages, answer, cut, now, now + length))
        messages = [*messages, answer]
        now += length
        for _ in range(num_tools // num_calls + (number < num_tools % num_calls)):
            length = round(draw.uniform(0.01, 0.4), 3)
            pieces.append(_tool(draw, now, now + length, has_root))
            now += length
        if not is_last:
            result = str(draw.randint(1, 900))
            about_call = {"role": "tool", "tool_call_id": f"call_{number}", "content": result}
            messages = [*messages, about_call]
    pieces.append(_reward(now + 0.01))
    if has_root:
        pieces.append(_root(about, now + 0.02))
    return Script(tuple(pieces), now + 0.03, 0.9 if is_right else 0.15)


def _answer(
    draw: random.Random, about: dict[str, Any], number: int, is_last: bool, is_right: bool
) -> tuple[dict[str, Any], bool]:
    thought = " ".join(draw.choices(_TALK.split(), k=draw.randint(4, 14)))
    if is_last:
        if draw.random() < _RUNS_OUT:
            return {"role": "assistant", "content": thought}, True
        number = about["answer"] if is_right else about["answer"] + draw.randint(1, 9)
        return {"role": "assistant", "content": f"{thought}: {number}"}, False
    arguments = f'{{"sum":"{draw.randint(2, 40)} * {draw.randint(2, 24)}"}}'
    call = {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": "calculate", "arguments": arguments},
    }
    return {"role": "assistant", "content": thought, "tool_calls": [call]}, False


def _call(
    draw: random.Random,
    messages: list[dict[str, Any]],
    answer: dict[str, Any],
    cut: bool,
    begin: float,
    end: float,
) -> Piece:
    from agl.utils.json_values import json_of

    num_given = sum(len(str(one.get("content") or "").split()) + 3 for one in messages)
    num_sampled = len(str(answer.get("content")).split()) + 4 * len(answer.get("tool_calls", ()))
    logprobs = [round(-draw.expovariate(1.5), 4) for _ in range(num_sampled)]
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "policy",
        "gen_ai.input.messages": json_of(messages, "messages"),
        "gen_ai.request.temperature": 1.0,
        "gen_ai.request.max_tokens": 64,
        "http.response.status_code": 200,
        "agentlightning.latency_seconds": round(end - begin, 3),
        "gen_ai.response.id": "chatcmpl-@hole-response@",
        "gen_ai.response.model": "policy",
        "gen_ai.output.messages": json_of([answer], "an answer"),
        "gen_ai.response.finish_reasons": ["length" if cut else "stop"],
        "gen_ai.usage.input_tokens": num_given,
        "gen_ai.usage.output_tokens": num_sampled,
        "prompt_token_ids": [draw.randint(3, 999) for _ in range(num_given)],
        "response_token_ids": [draw.randint(3, 999) for _ in range(num_sampled)],
        "agentlightning.response_logprobs": logprobs,
        "agentlightning.model_version": "@hole-version@",
    }
    name = "openai.chat.completion"
    template = _template(name, attributes, parent=False, writer="gateway")
    return Piece("call", name, "gateway", template, begin, end, False, cut, num_sampled)


def _tool(draw: random.Random, begin: float, end: float, has_root: bool) -> Piece:
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "calculate",
        "input": f"{draw.randint(2, 40)} * {draw.randint(2, 24)}",
        "output": draw.randint(1, 900),
    }
    name = "calculate"
    template = _template(name, attributes, parent=has_root, writer="agent")
    return Piece("tool", name, "agent", template, begin, end, has_root)


def _reward(at: float) -> Piece:
    holes = Holes()
    key = f"{LightningSpanAttributes.REWARD.value}.0"
    attributes: dict[str, Any] = {f"{key}.name": "primary", f"{key}.value": holes.number("reward")}
    template = _template(AGL_ANNOTATION, attributes, parent=False, writer="runner", holes=holes)
    return Piece("reward", AGL_ANNOTATION, "runner", template, at, at, False)


def _root(about: dict[str, Any], end: float) -> Piece:
    attributes = {"gen_ai.operation.name": "invoke_agent", "task.id": about["id"]}
    template = _template("clerk", attributes, parent=False, writer="agent")
    return Piece("root", "clerk", "agent", template, 0.0, end, False)


def _template(
    name: str, attributes: dict[str, Any], *, parent: bool, writer: Any, holes: Holes | None = None
) -> str:
    holes = holes or Holes()
    for known in ("response", "version"):
        holes.text(known)
    trace, own, root = holes.text("trace"), holes.text("span"), holes.text("parent")
    context = SpanContext(trace_id=trace, span_id=own, is_remote=False, trace_state={})
    above = SpanContext(trace_id=trace, span_id=root, is_remote=False, trace_state={})
    span = Span(
        rollout_id=holes.text("rollout"),
        attempt_id=holes.text("attempt"),
        sequence_id=0,
        trace_id=holes.text("trace"),
        span_id=holes.text("span"),
        parent_id=holes.text("parent") if parent else None,
        name=name,
        status=TraceStatus(status_code="OK"),
        attributes=attributes,
        events=[],
        links=[],
        start_time=holes.number("start"),
        end_time=holes.number("end"),
        context=context,
        parent=above if parent else None,
        resource=OtelResource(attributes={}, schema_url=""),
        writer=writer,
    )
    return span_template(holes, span)


def long_script(num_spans: int) -> Script:
    """A trace that is long and deep: a call in fifty, each of few words, tools below the root."""
    draw = random.Random(num_spans)
    about = {"id": "long", "question": "Read all pages.", "answer": num_spans}
    pieces: list[Piece] = []
    now = 0.05
    messages = [{"role": "user", "content": "Read the next page and say what matters."}]
    for number in range(num_spans - 2):
        length = round(draw.uniform(0.001, 0.02), 4)
        if number % 50 == 0:
            answer, cut = _answer(draw, about, number, is_last=True, is_right=True)
            pieces.append(_call(draw, messages, answer, cut, now, now + length))
        else:
            pieces.append(_tool(draw, now, now + length, has_root=True))
        now += length
    pieces.append(_reward(now + 0.01))
    pieces.append(_root(about, now + 0.02))
    return Script(tuple(pieces), now + 0.03, 0.5)
