"""Anthropic's ``/v1/messages``: the answer, whole or as a stream of events."""

from collections.abc import Mapping
from typing import Any

import msgspec

from agl_gateway.dialect import dumps
from agl_gateway.dialects.translated import ChatStream, server_sent_event as event
from agl_records.dialects.messages import INVALID_JSON

STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class MessageStream(ChatStream):
    """From ``message_start`` to ``message_stop``; one content block is open at a time."""

    def __init__(self) -> None:
        self._content: list[dict[str, Any]] = []
        """The blocks; what the open one says is in ``_pieces``."""
        self._pieces: list[str] = []
        self._has_calls = self._has_refused = False

    def begin(self, head: Mapping[str, Any]) -> bytes:
        # The prompt is counted by the ids that were asked for; a backend without them tells its
        # length at the end.
        usage = {
            "prompt_tokens": len(head.get("prompt_token_ids") or ()),
            **(head.get("usage") or {}),
        }
        self.answer = {
            "id": str(head.get("id")),
            "type": "message",
            "role": "assistant",
            "model": str(head.get("model")),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(usage),
        }
        return event("message_start", {"message": self.answer})

    def text(self, kind: str, text: str, logprobs: list[Any]) -> bytes:
        if kind == "reasoning":
            start = {"type": "thinking", "thinking": "", "signature": ""}
            return self._turn_to("thinking", start) + self._delta("thinking_delta", thinking=text)
        self._has_refused |= kind == "refusal"
        start = self._turn_to("text", {"type": "text", "text": ""})
        return start + self._delta("text_delta", text=text)

    def begin_call(self, kind: str, call_id: str, name: str) -> bytes:
        self._has_calls = True
        return self._turn_to(kind, {"type": "tool_use", "id": call_id, "name": name, "input": {}})

    def arguments(self, text: str) -> bytes:
        return self._delta("input_json_delta", partial_json=text)

    def finish(self, choice: Mapping[str, Any], usage: Mapping[str, Any]) -> bytes:
        ending = _ending(choice, self._has_calls, self._has_refused)
        closing = self._close()
        self.answer |= {"content": self._content, **ending, "usage": _usage(usage)}
        return (
            closing
            + event("message_delta", {"delta": ending, "usage": _usage(usage)})
            + event("message_stop", {})
        )

    def broken(self, status: int, message: str) -> bytes:
        return b"event: error\ndata: " + error_body(status, message) + b"\n\n"

    def _turn_to(self, kind: str, block: dict[str, Any]) -> bytes:
        if self.open == kind:
            return b""
        closing = self._close()
        self.open = kind
        self._content.append(block)
        start = {"index": len(self._content) - 1, "content_block": block}
        return closing + event("content_block_start", start)

    def _delta(self, kind: str, **fields: str) -> bytes:
        self._pieces += fields.values()
        delta = {"type": kind, **fields}
        return event("content_block_delta", {"index": len(self._content) - 1, "delta": delta})

    def _close(self) -> bytes:
        if not self.open:
            return b""
        block, said = self._content[-1], "".join(self._pieces)
        if block["type"] == "tool_use":
            block["input"] = _input(said)
        else:  # what a block of text or thinking says stands under the name of its type
            block[block["type"]] = said
        self._pieces.clear()
        self.open = ""
        return event("content_block_stop", {"index": len(self._content) - 1})


def error_body(status: int, message: str, code: str | None = None) -> bytes:
    """An error in Anthropic's shape."""
    kind = ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return dumps({"type": "error", "error": {"type": kind, "message": message}})


def _input(arguments: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(arguments or "{}")
    except (ValueError, RecursionError):  # that of many brackets
        value = None
    # What a model wrote wrongly still reaches its agent, and comes back as it was.
    return value if isinstance(value, dict) else {INVALID_JSON: arguments}


def _ending(choice: Mapping[str, Any], has_calls: bool, has_refused: bool) -> dict[str, Any]:
    """``stop_reason`` and ``stop_sequence``."""
    # vLLM says in `stop_reason` which text stopped it, and for a stop token its id; SGLang in
    # `matched_stop`.
    stopped_by = choice.get("stop_reason") or choice.get("matched_stop")
    reason = STOP_REASONS.get(str(choice.get("finish_reason")), "end_turn")
    if reason == "end_turn":
        if has_calls:  # a call that tool_choice names ends with `stop`
            reason = "tool_use"
        elif has_refused:
            reason = "refusal"
        elif isinstance(stopped_by, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stopped_by}
    return {"stop_reason": reason, "stop_sequence": None}


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    # Anthropic counts what came from the cache apart from the rest.
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "input_tokens": (usage.get("prompt_tokens") or 0) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.get("completion_tokens") or 0,
    }
