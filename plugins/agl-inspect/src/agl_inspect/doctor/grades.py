"""What each model call is good for.

- ``A``: token-exact: what was given and sampled, with log-probabilities. It can train weights.
- ``B``: text with a known chat template. It can be fine-tuned on.
- ``C``: text only. It can be learned from by prompt optimisation, and stand in preference pairs.
- ``-``: nothing: the call failed, or cannot be read.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from agl.errors import AdapterError
from agl.types import PromptTemplate
from agl_learning.collect.prompt_checks import unknown_token_id
from agl_records.calls.conversations import conversation
from agl_records.calls.reader import Recorded
from agl_records.training_data import ModelCall
from agl_records.types import ExclusionReason

MAX_CHARACTERS = 2_000
"""So much is looked at of each message."""
SHOWN_TOKENS = 8
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

    ``template`` is the chat template, or why there is none. The tokens of ``tokenizer``, of the
    model, must say what was sent; None takes them as they are.
    """
    call = record.call
    if record.malformed is not None:
        return "-", record.malformed
    if call.error is not None:
        return "-", f"the call failed: {call.error}"
    lacks = _lacks(call)
    if lacks is None:
        lost = None if tokenizer is None else _lost_prompt(call, tokenizer)
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


def _lost_prompt(call: ModelCall, tokenizer: Any) -> str | None:
    """Why the prompt of a call is lost as tokens: most of its words are not in them; else None.

    Words of assistants do not count: chat templates may leave parts of them out.
    """
    words = {word.casefold() for text in _texts(call.messages) for word in re.findall(r"\w+", text)}
    ids = call.prompt_token_ids or []
    if not words or not ids:
        return None
    decoded = str(tokenizer.decode(ids))
    # Without spaces, since tokenizers put some between tokens and drop others.
    said = "".join(decoded.split()).casefold()
    lost = sorted(word for word in words if word not in said)
    if 2 * len(lost) <= len(words):
        return None
    unknown = ids.count(cast(Any, unknown_token_id(tokenizer)))
    of_those = f", {unknown} of them the unknown one" if unknown else ""
    shown = f"{ids[:SHOWN_TOKENS]}{' ...' if len(ids) > SHOWN_TOKENS else ''}"
    return (
        f"its prompt is lost: the {len(ids)} tokens {shown}{of_those} say {decoded[:80]!r}, "
        f"without {', '.join(map(repr, lost[:3]))}"
    )


def _texts(messages: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    for message in messages:
        if message.get("role") == "assistant":
            continue
        content = message.get("content")
        parts: list[Any] = content if isinstance(content, list) else [{"text": content}]
        for part in parts:
            text = cast(Any, part).get("text") if isinstance(part, Mapping) else None
            if isinstance(text, str):
                yield text[:MAX_CHARACTERS]


def constant_prompts(resources: Mapping[str, Any]) -> list[str]:
    """Names of the prompts that are the same for every task, since they have no placeholder."""
    prompts = {name: x for name, x in resources.items() if isinstance(x, PromptTemplate)}
    return [name for name, prompt in prompts.items() if "{" not in prompt.template]


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
