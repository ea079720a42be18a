# pyright: standard
"""What clients of models ask and get, as tracers write it down: a request and its answer as JSON.

Read are chat completions, the Responses API, Anthropic's Messages, LangChain's generations, single
messages and plain texts.
"""

from collections.abc import Mapping
from typing import Any

from agl_records.calls.sources.fields import completion_fields, from_json_text, text
from agl_records.calls.sources.parts import chat_messages
from agl_records.dialects import messages as anthropic, responses
from agl_records.dialects.chat import as_chat
from agl_records.dialects.fields import Fields


def call_fields(request: Any, answer: Any, is_anthropic: bool = False) -> dict[str, Any]:
    """What a call has of its request and its answer, without what they do not say."""
    said = answer[0] if isinstance(answer, list) and answer else answer
    form = said if isinstance(said, dict) else {}
    if is_anthropic or (form.get("type") == "message" and "stop_reason" in form):
        asked, told = Fields(request, is_recorded=True), _anthropic_answer(form) if form else {}
        messages, tools = anthropic.conversation(asked)
        fields = {"messages": messages, "tools": tools, "model": request.get("model"), **told}
    else:
        fields = {**request_fields(request, not form or "choices" in form), **_answer_fields(said)}
    return {name: value for name, value in fields.items() if value}


def request_fields(request: Any, is_openai: bool = False) -> dict[str, Any]:
    """``messages``, ``tools`` and ``model`` of a request; those of OpenAI's client as they are."""
    if isinstance(request, str):
        return {"messages": [{"role": "user", "content": request}] if request else []}
    if isinstance(request, list):
        request = {"messages": request}
    if not isinstance(request, dict):
        return {}
    model = {"model": text(request.get("model"))}
    if "input" in request and "messages" not in request:
        fields = Fields(request, is_recorded=True)
        said, tools = responses.conversation(fields, fields.get("instructions", str))
        return {"messages": said, "tools": [tool.as_chat() for tool in tools], **model}
    said, tools = (
        v if isinstance(v := request.get(n), list) else [] for n in ("messages", "tools")
    )
    if said and isinstance(said[0], list):
        said = said[0]  # LangChain asks for several prompts at once
    if not is_openai or not all(isinstance(m, dict) and "role" in m for m in said):
        said = [chat for message in said for chat in chat_messages(message)]
    return {"messages": said, "tools": listed_tools(tools), **model}


def _answer_fields(answer: Any) -> dict[str, Any]:
    """What a call has of its answer, in any form but Anthropic's."""
    if isinstance(answer, str):
        return {"response": {"role": "assistant", "content": answer} if answer else None}
    if not isinstance(answer, dict):
        return {}
    if answer.get("choices"):
        fields = completion_fields(answer)
        return {**fields, "response": dict(answer["choices"][0].get("message") or {}) or None}
    if answer.get("object") == "response":
        return _responses_answer(answer)
    if answer.get("generations"):
        return _generation(answer)
    if isinstance(answer.get("message"), dict):
        return _answer_fields(answer["message"])
    if "role" not in answer and "type" not in answer:
        return {}
    return {"response": chat_messages({"role": "assistant", **answer})[0]}


def _generation(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What LangChain calls an ``LLMResult``."""
    first = answer["generations"][0]
    first = first[0] if isinstance(first, list) else first
    about = {**(answer.get("llm_output") or {}), **(first.get("generation_info") or {})}
    said = first.get("message") or {"role": "assistant", "content": first.get("text")}
    return {
        **_answer_fields(said if "role" in said else {"role": "assistant", **said}),
        "model": text(about.get("model_name")),
        "response_id": text(about.get("id")),
        "finish_reason": text(about.get("finish_reason")),
    }


def listed_tools(tools: Any) -> list[dict[str, Any]]:
    """Definitions of tools in OpenAI's form, also those that are each written as JSON."""
    read = map(from_json_text, tools)
    return [tool if "function" in tool else as_chat(_with_parameters(tool)) for tool in read]


def _with_parameters(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool whose parameters have OpenAI's name for them."""
    names = {"inputSchema": "parameters", "input_schema": "parameters"}
    return {names.get(name, name): value for name, value in tool.items()}


def _responses_answer(answer: Mapping[str, Any]) -> dict[str, Any]:
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


def _anthropic_answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What a call has of an answer of Anthropic's Messages."""
    said = {"role": "assistant", "content": answer.get("content")}
    (message,) = anthropic.message(Fields(said, is_recorded=True), set())
    is_empty = message["content"] is None and "tool_calls" not in message
    return {
        "response": None if is_empty else message,
        "model": text(answer.get("model")),
        "response_id": text(answer.get("id")),
        "finish_reason": text(answer.get("stop_reason")),
    }
