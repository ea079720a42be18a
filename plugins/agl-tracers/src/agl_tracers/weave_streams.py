"""Whole answers out of the pieces of a stream; Weave's own mergers lose parts of them."""

import json
import time
from collections.abc import Mapping
from typing import Any

PIECES = ("content", "reasoning", "reasoning_content", "refusal", "arguments")
"""Strings that come in pieces; others are whole."""


def add_chunk(
    answer: dict[str, Any] | None,
    chunk: Any,
    skip_last: bool = False,
    stream_start_time: float | None = None,
) -> dict[str, Any]:
    """Stands for ``openai_accumulator`` of Weave 0.54.

    That one drops the first piece of a tool call's arguments, all token ids, and all but the last
    log-probabilities.

    Args:
        answer: The chat completion so far, or None.
        chunk: A ``ChatCompletionChunk``.
        skip_last: The agent did not ask for the chunk with the usage: Weave did.
        stream_start_time: When the request was made, in unix seconds.

    Returns:
        The chat completion, as it would have come without streaming.

    Raises:
        StopIteration: This is the chunk that the agent must not see; it holds the answer.
    """
    new = chunk.model_dump(exclude_none=True)
    choices = new.pop("choices", [])
    prompt_token_ids = (answer or {}).get("prompt_token_ids") or new.get("prompt_token_ids")
    answer = {**(answer or {"choices": []}), **new, "object": "chat.completion"}
    if prompt_token_ids:
        answer["prompt_token_ids"] = prompt_token_ids
    for choice in choices:
        choice["message"] = choice.pop("delta", {})
        merge(at_index(answer["choices"], choice["index"]), choice)
        started = stream_start_time is not None and "time_to_first_token" not in answer
        if started and choice["message"].get("content"):
            answer["time_to_first_token"] = time.time() - (stream_start_time or 0.0)
    if skip_last and not choices and new.get("usage"):
        raise StopIteration(answer)
    return answer


def add_event(answer: dict[str, Any] | None, event: Any) -> dict[str, Any] | None:
    """Stands for ``anthropic_accumulator`` of Weave 0.54, which keeps nothing but text.

    Args:
        answer: The message so far, or None.
        event: A ``RawMessageStreamEvent``.

    Returns:
        The message, as it would have come without streaming.
    """
    new = event.model_dump(exclude_none=True)
    if event.type == "message_start":
        return new["message"]
    if answer is None:
        return None
    if event.type == "message_delta":
        answer.update(new["delta"])
        answer["usage"] = {**answer.get("usage", {}), **new.get("usage", {})}
    elif event.type == "content_block_start":
        at_index(answer["content"], event.index).update(new["content_block"])
    elif event.type == "content_block_delta":
        block = at_index(answer["content"], event.index)
        for key, value in new["delta"].items():
            if key == "citation":
                block.setdefault("citations", []).append(value)
            elif key != "type":
                block[key] = block.get(key, "") + value
    elif event.type == "content_block_stop":
        block = at_index(answer["content"], event.index)
        if "partial_json" in block:
            block["input"] = json.loads(block.pop("partial_json") or "{}")
    return answer


def last_message(answer: Any, event: Any) -> Any:
    """Stands for ``anthropic_stream_accumulator``, which does not know anthropic 2's events."""
    return event.message if event.type == "message_stop" else answer


def merge(whole: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """Add a piece: strings of ``PIECES`` and lists get longer, tool calls by their index."""
    for key, value in piece.items():
        if key == "tool_calls":
            for call in value:
                others = {name: part for name, part in call.items() if name != "index"}
                merge(at_index(whole.setdefault(key, []), call["index"]), others)
        elif isinstance(value, Mapping):
            merge(whole.setdefault(key, {}), value)
        elif isinstance(value, list) or key in PIECES:
            whole[key] = whole[key] + value if key in whole else value
        else:
            whole[key] = value


def at_index(items: list[dict[str, Any]], index: int) -> dict[str, Any]:
    """The item at ``index``, made if there is none yet."""
    while len(items) <= index:
        items.append({})
    return items[index]
