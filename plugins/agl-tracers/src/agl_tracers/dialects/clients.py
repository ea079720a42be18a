# pyright: standard
"""What clients of models ask and get, as tracers write it down: a request and its answer as JSON.

Read are chat completions, the Responses API, Anthropic's Messages, LangChain's generations, single
messages and plain texts.
"""

from collections.abc import Mapping
from typing import Any

from agl.utils.json_values import parse_json
from agl_records.calls.sources.fields import completion_fields, text
from agl_records.calls.sources.parts import chat_messages
from agl_records.dialects import messages, responses
from agl_records.dialects.chat import as_chat
from agl_records.dialects.fields import Fields


def request_fields(request: Any) -> dict[str, Any]:
    """``messages`` and ``tools`` of a request, and its ``model``, as far as it says them."""
    if isinstance(request, str):
        return {"messages": [{"role": "user", "content": request}]} if request else {}
    if isinstance(request, list):
        request = {"messages": request}
    if not isinstance(request, dict):
        return {}
    model = {"model": model} if (model := text(request.get("model"))) else {}
    if "input" in request and "messages" not in request:
        return {**responses_request(request), **model}
    said = request.get("messages") or []
    if said and isinstance(said[0], list):
        said = said[0]  # LangChain asks for several prompts at once
    return {
        "messages": [chat for message in said for chat in chat_messages(message)],
        "tools": listed_tools(request.get("tools") or []),
        **model,
    }


def answer_fields(answer: Any) -> dict[str, Any]:
    """What a call has of its answer, as far as the answer says it."""
    if isinstance(answer, list):
        answer = answer[0] if answer else None
    if isinstance(answer, str):
        return {"response": {"role": "assistant", "content": answer}} if answer else {}
    if not isinstance(answer, dict):
        return {}
    if answer.get("choices"):
        fields = completion_fields(answer)
        message = answer["choices"][0].get("message") or {}
        return {**fields, "response": dict(message) if message else None}
    if answer.get("object") == "response":
        return responses_answer(answer)
    if answer.get("type") == "message" and "stop_reason" in answer:
        return anthropic_answer(answer)
    if answer.get("generations"):
        return _generation(answer)
    if isinstance(answer.get("message"), dict):
        return answer_fields(answer["message"])
    if "role" not in answer and "type" not in answer:
        return {}
    (message, *_) = chat_messages({"role": "assistant", **answer})
    return {"response": message}


def _generation(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What LangChain calls an ``LLMResult``."""
    first = answer["generations"][0]
    first = first[0] if isinstance(first, list) else first
    about = {**(answer.get("llm_output") or {}), **(first.get("generation_info") or {})}
    said = first.get("message") or {"role": "assistant", "content": first.get("text")}
    return {
        **answer_fields(said if "role" in said else {"role": "assistant", **said}),
        "model": text(about.get("model_name")),
        "response_id": text(about.get("id")),
        "finish_reason": text(about.get("finish_reason")),
    }


def listed_tools(tools: Any) -> list[dict[str, Any]]:
    """Definitions of tools in OpenAI's form, also those that are each written as JSON."""
    parsed = (parse_json(tool) if isinstance(tool, str) else tool for tool in tools)
    return [tool if "function" in tool else as_chat(_named(tool)) for tool in parsed]


def _named(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool whose parameters have OpenAI's name for them."""
    names = {"inputSchema": "parameters", "input_schema": "parameters"}
    return {names.get(name, name): value for name, value in tool.items()}


def responses_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """``messages`` and ``tools`` of a request to the Responses API."""
    fields = Fields(request, is_recorded=True)
    said, tools = responses.conversation(fields, fields.get("instructions", str))
    return {"messages": said, "tools": [tool.as_chat() for tool in tools]}


def responses_answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What a call has of an answer of the Responses API."""
    said = responses.item_messages(Fields(answer, is_recorded=True).objects("output"), [])
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for each in said:
        message.update({key: value for key, value in each.items() if value})
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    return {
        "response": message if said else None,
        "model": text(answer.get("model")),
        "response_id": text(answer.get("id")),
        "finish_reason": "length" if answer.get("status") == "incomplete" else finish,
    }


def anthropic_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """``messages`` and ``tools`` of a request to Anthropic's Messages."""
    said, tools = messages.conversation(Fields(request, is_recorded=True))
    return {"messages": said, "tools": tools}


def anthropic_answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What a call has of an answer of Anthropic's Messages."""
    said = {"role": "assistant", "content": answer.get("content")}
    (message,) = messages.message(Fields(said, is_recorded=True), set())
    is_empty = message["content"] is None and "tool_calls" not in message
    return {
        "response": None if is_empty else message,
        "model": text(answer.get("model")),
        "response_id": text(answer.get("id")),
        "finish_reason": text(answer.get("stop_reason")),
    }
