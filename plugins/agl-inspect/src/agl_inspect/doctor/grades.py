"""What each model call is good for.

- ``A``: token-exact: what was given and sampled, with log-probabilities. It can train weights.
- ``B``: text with a known chat template. It can be fine-tuned on.
- ``C``: text only. It can be learned from by prompt optimisation, and stand in preference pairs.
- ``-``: nothing: the call failed, or cannot be read.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agl.errors import AdapterError
from agl_inspect.doctor.prompts import lost_prompt
from agl_records.calls.conversations import conversation
from agl_records.calls.reader import Recorded
from agl_records.training_data import ModelCall
from agl_records.types import ExclusionReason

Grade = Literal["A", "B", "C", "-"]
USES: dict[Grade, str] = {
    "A": "train weights",
    "B": "fine-tune",
    "C": "optimise prompts, make preference pairs",
    "-": "nothing",
}


@dataclass(frozen=True)
class Graded:
    """A model call, its grade, and what became of it."""

    call_id: str
    span_name: str
    through_gateway: bool
    agent_name: str | None
    model: str | None
    prompt_tokens: int | None
    response_tokens: int | None
    truncated: bool
    """Whether the answer was cut off at the limit of tokens."""
    tool_problem: ExclusionReason | None
    """``broken_tool_call`` or ``unknown_tool`` where the answer calls a tool so."""
    grade: Grade
    because: str
    """What it lacks for a better grade; empty for A."""
    row: int | None = None
    """In which training row it is."""
    reward: float | None = None
    rule: str = ""
    credit: str = ""
    """How the rule came to that reward."""
    excluded: ExclusionReason | None = None
    detail: str = ""


Template = Callable[[list[dict[str, Any]], list[dict[str, Any]] | None], object]
"""Writes messages and tools as the text that a model is given; raises for what it cannot."""


def grade(record: Recorded, template: Template | str, tokenizer: Any = None) -> tuple[Grade, str]:
    """The grade of a call, and why it is no better.

    Args:
        record: The call.
        template: The chat template, or why there is none.
        tokenizer: Of the model; its tokens must say what was sent. None takes them as they are.
    """
    call = record.call
    if record.malformed is not None:
        return "-", record.malformed
    if call.error is not None:
        return "-", f"the call failed: {call.error}"
    lacks = _lacks(call)
    if lacks is None:
        lost = None if tokenizer is None else lost_prompt(call, tokenizer)
        return ("A", "") if lost is None else ("C", lost)
    try:
        chat = conversation(call)
    except AdapterError as error:
        return "-", f"{lacks}; {error}"
    if call.response is None or not call.messages:
        return "-", f"{lacks}; no text of the {'answer' if call.messages else 'request'} either"
    if isinstance(template, str):
        return "C", f"{lacks}; {template}"
    try:
        template(chat["messages"], chat["tools"])
    except Exception as error:
        # Templates are programs, and may raise anything.
        return "C", f"{lacks}; the chat template refuses it: {type(error).__name__}: {error}"
    return "B", lacks


def _lacks(call: ModelCall) -> str | None:
    """What is missing for training weights."""
    if call.prompt_token_ids and call.response_token_ids == []:
        return "the answer has no tokens"
    if not call.prompt_token_ids or not call.response_token_ids:
        ids = {"prompt": call.prompt_token_ids, "answer": call.response_token_ids}
        return f"no token ids of the {' and the '.join(name for name in ids if not ids[name])}"
    logprobs = call.response_logprobs or []
    if len(logprobs) != len(call.response_token_ids):
        return f"{len(logprobs)} log-probabilities for {len(call.response_token_ids)} tokens"
    if not all(math.isfinite(logprob) for logprob in logprobs):
        return "a log-probability is not finite"
    return None


def find_tokenizer(tokenizer: str | None, options: Mapping[str, Any]) -> Any:
    """The tokenizer of the model that is trained, or a sentence why none is known.

    It is that of this folder or name; else of the algorithm's option ``tokenizer`` or ``model``.
    """
    source = tokenizer or options.get("tokenizer") or options.get("model")
    if not isinstance(source, str):
        return "no chat template is known (--tokenizer FOLDER_OR_NAME gives one)"
    try:
        from transformers import AutoTokenizer

        loaded: Any = AutoTokenizer.from_pretrained(source)
    except ImportError:
        return f"the chat template of {source!r} needs 'transformers', which is not installed"
    except (OSError, ValueError) as error:
        return f"no tokenizer can be loaded from {source!r}: {str(error).splitlines()[0]}"
    return loaded


def template_of(tokenizer: Any) -> Template | str:
    """The chat template of what ``find_tokenizer`` has found, or why there is none."""
    if isinstance(tokenizer, str):
        return tokenizer
    if not tokenizer.chat_template:
        return f"the tokenizer {tokenizer.name_or_path!r} has no chat template"
    return lambda messages, tools: tokenizer.apply_chat_template(
        messages, tools=tools, tokenize=False
    )
