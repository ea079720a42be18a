"""OpenAI's ``/v1/responses``: the answer, whole or as a stream of events."""

import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from agl_gateway.dialects.translated import ChatStream, server_sent_event
from agl_records.dialects.responses_tools import Tool

INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reason -> why a response is incomplete."""

PREFIXES = {
    "reasoning": "rs",
    "message": "msg",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "local_shell_call": "lsh",
    "tool_search_call": "tsc",
}
"""Of ids, by the type of their item."""

PARTS: dict[str, dict[str, Any]] = {
    "reasoning": {"type": "reasoning_text", "text": ""},
    "text": {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
    "refusal": {"type": "refusal", "refusal": ""},
}
"""What each kind of text begins as; the names of its events follow from its type."""

Item = dict[str, Any]


class Echo:
    """What an answer repeats of its request, or the defaults where that says nothing."""

    def __init__(self) -> None:
        self.with_logprobs = False
        self.tools: Mapping[str, Tool] = {}
        """By the names that the model knows them by."""
        self.fields: dict[str, Any] = {
            "instructions": None,
            "max_output_tokens": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": None,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "truncation": "disabled",
            "user": None,
        }

    def set(self, name: str, value: Any) -> None:
        """Repeat this, if there was something."""
        if value is not None:
            self.fields[name] = value

    def response(self, head: Mapping[str, Any], status: str, output: list[Item]) -> Item:
        return {
            "id": str(head.get("id")),
            "object": "response",
            "created_at": head.get("created") or int(time.time()),
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": str(head.get("model")),
            "output": output,
            "usage": None,
            **self.fields,
        }


class ResponseStream(ChatStream):
    """From ``response.created`` to ``response.completed``; one item is open at a time."""

    def __init__(self, echo: Echo, keep: Callable[[Item], None] | None = None) -> None:
        self._echo = echo
        self._keep = keep
        self._whole_call: tuple[Tool, str] | None = None
        """A call whose item is made of all of its arguments, and its id."""
        self._arguments = ""
        self._head: Mapping[str, Any] = {}
        self._output: list[Item] = []
        self._sequence = 0

    def begin(self, head: Mapping[str, Any]) -> bytes:
        self._head = {key: head.get(key) for key in ("id", "created", "model")}
        response = self._echo.response(self._head, "in_progress", [])
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def text(self, kind: str, text: str, logprobs: list[Any]) -> bytes:
        start = self._part_start(kind)
        part, said = self._part, dict[str, Any](delta=text)
        part["refusal" if kind == "refusal" else "text"] += text
        if kind == "text":
            said["logprobs"] = logprobs if self._echo.with_logprobs else []
            part["logprobs"] += said["logprobs"]
        return start + self._part_event(f"response.{part['type']}.delta", **said)

    def begin_call(self, kind: str, call_id: str, name: str) -> bytes:
        closing = self._close()
        self.open = kind
        tool = self._echo.tools.get(name)
        if tool is not None and tool.kind != "function":
            self._whole_call, self._arguments = (tool, call_id), ""
            return closing
        named = {"name": name} if tool is None else {"name": tool.name, **tool.where()}
        return closing + self._add("function_call", call_id=call_id, **named, arguments="")

    def arguments(self, text: str) -> bytes:
        if self._whole_call is not None:
            self._arguments += text
            return b""
        self._item["arguments"] += text
        return self._item_event("response.function_call_arguments.delta", delta=text)

    def finish(self, choice: Mapping[str, Any], usage: Mapping[str, Any]) -> bytes:
        cut_off = INCOMPLETE.get(str(choice.get("finish_reason")))
        status = "incomplete" if cut_off else "completed"
        closing = self._close(status)
        self.answer = self._echo.response(self._head, status, self._output)
        self.answer["incomplete_details"] = {"reason": cut_off} if cut_off else None
        self.answer["usage"] = _usage(usage) if usage else None
        if self._keep is not None and self._head.get("id"):
            self._keep(self.answer)
        return closing + self._event(f"response.{status}", response=self.answer)

    def broken(self, status: int, message: str) -> bytes:
        if not self._head:
            return self._event("error", code="server_error", message=message, param=None)
        response = self._echo.response(self._head, "failed", self._output)
        response["error"] = {"code": "server_error", "message": message}
        return self._event("response.failed", response=response)

    @property
    def _item(self) -> Item:
        return self._output[-1]

    @property
    def _part(self) -> Item:
        return self._item["content"][-1]

    def _part_start(self, kind: str) -> bytes:
        if self.open == kind:
            return b""
        if kind == "refusal" and self.open == "text":  # another part of the same message
            sent = self._close_part()
        elif kind == "reasoning":
            sent = self._close() + self._add("reasoning", summary=[], content=[])
        else:
            sent = self._close() + self._add("message", role="assistant", content=[])
        self.open = kind
        part = deepcopy(PARTS[kind])
        self._item["content"].append(part)
        return sent + self._part_event("response.content_part.added", part=part)

    def _add(self, type: str, **fields: Any) -> bytes:
        item_id = f"{PREFIXES[type]}_{self._head.get('id')}_{len(self._output)}"
        item = {"id": item_id, "type": type, "status": "in_progress", **fields}
        self._output.append(item)
        return self._item_event("response.output_item.added", with_id=False, item=item)

    def _close_part(self) -> bytes:
        part = self._part
        said = {name: part[name] for name in ("text", "refusal", "logprobs") if name in part}
        done = self._part_event(f"response.{part['type']}.done", **said)
        return done + self._part_event("response.content_part.done", part=part)

    def _close(self, status: str = "completed") -> bytes:
        if not self.open:
            return b""
        done = b""
        if self._whole_call is not None:
            (tool, call_id), self._whole_call = self._whole_call, None
            done = self._add(**tool.item(call_id, self._arguments))
        item = self._item
        if not self.open.startswith("call"):
            done += self._close_part()
        elif item["type"] == "function_call":
            done += self._item_event(
                "response.function_call_arguments.done",
                name=item["name"],
                arguments=item["arguments"],
            )
        elif item["type"] == "custom_tool_call":
            text = item["input"]
            done += self._item_event("response.custom_tool_call_input.delta", delta=text)
            done += self._item_event("response.custom_tool_call_input.done", input=text)
        item["status"] = status
        self.open = ""
        return done + self._item_event("response.output_item.done", with_id=False, item=item)

    def _part_event(self, kind: str, **fields: Any) -> bytes:
        return self._item_event(kind, content_index=len(self._item["content"]) - 1, **fields)

    def _item_event(self, kind: str, *, with_id: bool = True, **fields: Any) -> bytes:
        item_id = {"item_id": self._item["id"]} if with_id else {}
        return self._event(kind, **item_id, output_index=len(self._output) - 1, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        sequence, self._sequence = self._sequence, self._sequence + 1
        return server_sent_event(kind, {"sequence_number": sequence, **fields})


def _usage(usage: Mapping[str, Any]) -> Item:
    given, taken = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": taken,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": given + taken,
    }
