"""A call whose agent speaks another API than its backend, which is asked for a chat completion."""

from collections.abc import Mapping
from typing import Any

import msgspec

from agl_gateway.dialect import Dialect, Exchange, dumps, event_data, read_object, split_events
from agl_gateway.errors import NOT_JSON, WRONG_FORM, RefusedError, shorten
from agl_gateway.response_history import NO_HISTORY, AttemptHistory
from agl_records.dialects.fields import FieldError, Fields


class ChatStream:
    """The stream that an agent gets for the chunks of a chat completion.

    A dialect says what it sends for each thing that comes: text, reasoning, refusals, tool calls,
    and the end. Whole answers are made of the same pieces, in ``Translated.whole``.
    """

    answer: dict[str, Any]
    """What all of it amounts to, once it has ended."""
    open = ""
    """What is being sent: the kind of a block or of an item's part; of a tool call its number."""

    def begin(self, head: Mapping[str, Any]) -> bytes:
        """The first chunk is there."""
        raise NotImplementedError

    def reasoning(self, text: str) -> bytes:
        """A piece of what the model thought."""
        raise NotImplementedError

    def text(self, text: str, logprobs: list[Any]) -> bytes:
        """A piece of the answer's text."""
        raise NotImplementedError

    def refusal(self, text: str) -> bytes:
        """A piece of the text with which the model declines."""
        raise NotImplementedError

    def tool_call(self, index: int, call_id: str | None, name: str, arguments: str) -> bytes:
        """A piece of a tool call; ``call_id`` and ``name`` come once, with the first piece.

        Raises:
            ValueError: The pieces of two calls are mixed.
        """
        kind, start = f"call {index}", b""
        if self.open != kind:
            if call_id is None or not name:
                raise ValueError(f"arguments of tool call {index}, which is not the one being sent")
            start = self.begin_call(kind, call_id, name)
        return start + (self.arguments(arguments) if arguments else b"")

    def begin_call(self, kind: str, call_id: str, name: str) -> bytes:
        """A tool call begins; ``open`` becomes ``kind``."""
        raise NotImplementedError

    def arguments(self, text: str) -> bytes:
        """A piece of the arguments of the open tool call."""
        raise NotImplementedError

    def finish(self, choice: Mapping[str, Any], usage: Mapping[str, Any]) -> bytes:
        """The answer is complete.

        Args:
            choice: ``finish_reason`` and ``stop_reason``.
            usage: As the backend counts it; empty when it does not.
        """
        raise NotImplementedError

    def broken(self, status: int, message: str) -> bytes:
        """The stream breaks off."""
        raise NotImplementedError


class Translated(Exchange):
    """One call, translated there and back.

    Args:
        chat: The chat completion to ask for.
        stream: What the agent gets, if it asked for a stream.
    """

    def __init__(self, chat: dict[str, Any], stream: ChatStream) -> None:
        if chat.get("stream"):
            chat["stream_options"] = {"include_usage": True}
        request = dumps(chat)
        super().__init__(request, read_object(request))
        self._stream = stream
        self._begun = self._over = False
        self._ending: dict[str, Any] = {}
        self._usage: Mapping[str, Any] = {}
        self._calls: set[int] = set()
        """Numbers of the tool calls that have begun."""

    def whole(self, answer: bytes) -> bytes:
        completion = msgspec.json.decode(answer)
        choices = completion.get("choices") if isinstance(completion, dict) else None
        if not choices or not isinstance(choices[0], dict) or "message" not in choices[0]:
            raise ValueError("it has no list of choices with messages")
        try:
            return dumps(self._translate(completion, choices[0]))
        except WRONG_FORM as failure:
            raise ValueError(f"it has a wrong form: {failure!r}") from None

    def _translate(self, completion: dict[str, Any], choice: dict[str, Any]) -> dict[str, Any]:
        """The whole answer as the agent gets it: what a stream of one chunk amounts to."""
        message = choice["message"]
        calls = [
            {**call, "index": number} for number, call in enumerate(message.get("tool_calls") or ())
        ]
        self._stream.begin(completion)
        self._translate_delta({**message, "tool_calls": calls}, choice)
        self._stream.finish(choice, completion.get("usage") or {})
        return self._stream.answer

    def chunk(self, data: bytes) -> bytes:
        *events, self._rest = split_events(self._rest + data)
        return b"".join([self._event(event) for event in events])

    def end(self) -> bytes:
        rest, self._rest = self._rest, b""
        return self._event(rest) + (self._finish() if self._ending else b"")

    def _finish(self) -> bytes:
        if self._over:
            return b""
        if not self._ending:
            return self.broken(502, "the stream ended before the answer was complete")
        self._over = True
        return self._stream.finish(self._ending, self._usage)

    def broken(self, status: int, message: str) -> bytes:
        if self._over:
            return b""
        self._over = True
        return self._stream.broken(status, message)

    def _event(self, event: bytes) -> bytes:
        data = event_data(event)
        if not data or self._over:
            return b""
        if data == b"[DONE]":
            return self._finish()
        try:
            chunk = msgspec.json.decode(data)
        except NOT_JSON:
            chunk = None
        if not isinstance(chunk, dict):
            return self.broken(502, f"the backend sent an event that is not JSON: {shorten(data)}")
        if error := chunk.get("error"):
            return self.broken(502, message_of(error))
        try:
            return self._translate_chunk(chunk)
        except WRONG_FORM as failure:
            message = f"the backend sent a chunk of a wrong form ({failure!r}): {shorten(data)}"
            return self.broken(502, message)

    def _translate_chunk(self, chunk: dict[str, Any]) -> bytes:
        sent: list[bytes] = []
        if not self._begun:
            self._begun = True
            sent.append(self._stream.begin(chunk))
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices") or ():
            sent += self._translate_delta(choice.get("delta") or {}, choice)
            if choice.get("finish_reason"):
                self._ending = choice
        return b"".join(sent)

    def _translate_delta(self, delta: dict[str, Any], choice: dict[str, Any]) -> list[bytes]:
        stream = self._stream
        sent: list[bytes] = []
        # vLLM's older and newer field.
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            sent.append(stream.reasoning(thought))
        if text := delta.get("content"):
            sent.append(stream.text(text, (choice.get("logprobs") or {}).get("content") or []))
        if refusal := delta.get("refusal"):
            sent.append(stream.refusal(refusal))
        for number, call in enumerate(delta.get("tool_calls") or ()):
            function = call.get("function") or {}
            name, arguments = function.get("name") or "", function.get("arguments") or ""
            index, call_id = call.get("index", number), call.get("id")
            if index not in self._calls and (call_id is None or not name):
                raise ValueError(f"tool call {index} has no {'id' if name else 'name'}")
            self._calls.add(index)
            sent.append(stream.tool_call(index, call_id, name, arguments))
        return sent


class TranslatedDialect(Dialect):
    """An API of which every call is answered by a chat completion, and that is recorded."""

    def read(self, body: bytes, history: AttemptHistory = NO_HISTORY) -> Exchange:
        try:
            request = msgspec.json.decode(body)
        except NOT_JSON as error:
            raise RefusedError(400, f"the request body is not valid JSON: {error}") from None
        try:
            return self.translate(Fields(request), history)
        except FieldError as error:
            raise RefusedError(400, str(error)) from None

    def translate(self, request: Fields, history: AttemptHistory) -> Exchange:
        """The call of a request.

        Args:
            request: As it came.
            history: What it may go on from.

        Raises:
            FieldError: A field is wrong, or cannot be translated.
        """
        raise NotImplementedError

    def error(self, refused: RefusedError) -> bytes:
        message = error_message(refused.backend_body, refused.message)
        return self.error_of(refused.status, message, refused.code)

    def error_of(self, status: int, message: str, code: str | None) -> bytes:
        """An error in this API's shape."""
        raise NotImplementedError


def message_of(error: Any) -> str:
    """The sentence in an error of OpenAI's form, or of what stands in its place."""
    return str(error.get("message") or error) if isinstance(error, dict) else str(error)


def error_message(body: bytes | None, otherwise: str) -> str:
    """The sentence in the body of a backend's error."""
    try:
        answer = msgspec.json.decode(body or b"")
    except NOT_JSON:
        return otherwise
    if not isinstance(answer, dict):
        return otherwise
    return (
        message_of(answer["error"])
        if answer.get("error")
        else str(answer.get("message") or otherwise)
    )


def server_sent_event(kind: str, fields: Mapping[str, Any]) -> bytes:
    """An event with a name, as Anthropic and the Responses API send them."""
    return b"event: " + kind.encode() + b"\ndata: " + dumps({"type": kind, **fields}) + b"\n\n"
