"""Whether the tokens of a prompt say what the agent sent."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from agl.types import PromptTemplate
from agl_learning.collect.prompt_checks import unknown_token_id
from agl_records.training_data import ModelCall

MAX_CHARACTERS = 2_000
"""So much is looked at of each message."""
SHOWN_TOKENS = 8


def constant_prompts(resources: Mapping[str, Any]) -> list[str]:
    """Names of the prompts that are the same for every task, since they have no placeholder."""
    prompts = {name: x for name, x in resources.items() if isinstance(x, PromptTemplate)}
    return [name for name, prompt in prompts.items() if "{" not in prompt.template]


def lost_prompt(call: ModelCall, tokenizer: Any) -> str | None:
    """Why the prompt of a call is lost as tokens: most of its words are not in them.

    Words of assistants do not count: chat templates may leave parts of them out.

    Args:
        call: With token ids of its prompt.
        tokenizer: Of the model, as transformers has them.

    Returns:
        A sentence; None where the words are there, or there are none.
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
