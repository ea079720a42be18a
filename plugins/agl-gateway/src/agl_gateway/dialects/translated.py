"""A call whose agent speaks another API than its backend, which is asked for a chat completion."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import msgspec

from agl_gateway.dialect import Dialect, Exchange, dumps
from agl_gateway.errors import NOT_JSON, WRONG_FORM, RefusedError, error_body, message_of
from agl_gateway.normal_form import WholeAnswer, read_object
from agl_gateway.response_history import NO_HISTORY, ResponseHistory
from agl_gateway.tool_calls import ToolCall, is_object
from agl_records.dialects.fields import FieldError, Fields


class ChatStream(Protocol):
    """The stream that an agent gets for the chunks of a chat completion.

    A dialect says what it sends for each thing that comes: texts, tool calls, and the end. Whole
    answers are made of the same pieces, in ``Translated.whole``.
    """

    answer: dict[str, Any]
    """What all of it amounts to, once it has ended."""
    open = ""
    """What is being sent: the kind of a block or of an item's part; of a tool call its number."""

    def begin(self, head: Mapping[str, Any]) -> bytes: ...

    def text(self, kind: str, text: str, logprobs: list[Any]) -> bytes:
        """A piece of ``reasoning``, of the answer's ``text``, or of its ``refusal``."""
        ...

    def begin_call(self, kind: str, call_id: str, name: str) -> bytes:
        """A tool call begins; ``open`` becomes ``kind``. One is sent to its end before the next."""
        ...

    def arguments(self, text: str) -> bytes: ...

    def finish(self, choice: Mapping[str, Any], usage: Mapping[str, Any]) -> bytes:
        """The answer is complete; ``choice`` says why, and ``usage`` may be empty."""
        ...

    def broken(self, status: int, message: str) -> bytes: ...


class _Piece(NamedTuple):
    """What a chunk adds to one thing of the answer."""

    kind: str
    """``reasoning``, ``text``, ``refusal``, or ``call`` with the number of the call."""
    text: str
    logprobs: Sequence[Any] = ()
    call: ToolCall | None = None


class Translated(Exchange):
    """One call, translated there and back: asked for as ``chat``, and answered by ``stream``."""

    def __init__(self, chat: dict[str, Any], stream: ChatStream) -> None:
        if chat.get("stream"):
            chat["stream_options"] = {"include_usage": True}
        request = dumps(chat)
        super().__init__(request, read_object(request))
        self._stream = stream
        self._begun = False
        self._ending: dict[str, Any] = {}
        self._usage: Mapping[str, Any] = {}
        self._call, self._arguments = "", ""
        """The kind of pieces of the tool call that is being sent, and what was sent of it."""
        self._num_calls = 0
        """Calls that have begun, in the order of their numbers."""
        self._held: list[_Piece] = []
        """What waits for the end of that call."""

    def whole(self, answer: WholeAnswer) -> bytes:
        completion = msgspec.json.decode(answer.body)
        choices = completion["choices"]
        if not choices or "message" not in choices[0]:
            raise ValueError("it has no list of choices with messages")
        with suppress(KeyError, TypeError):  # the record begins with this one, too
            choices.sort(key=itemgetter("index"))
        try:  # it is what a stream of one chunk amounts to
            self._translate_chunk(self._normalizer.take_message(completion, choices[0]))
            self._send(is_over=True)
            self._stream.finish(choices[0], self._usage)
            return dumps(self._stream.answer)
        except WRONG_FORM as failure:
            raise ValueError(f"it has a wrong form: {failure!r}") from None

    def end(self) -> bytes:
        rest, self._rest = self._rest, b""
        return self._event(rest) + (self._event(b"data: [DONE]") if self._has_finished else b"")

    def _say_broken(self, status: int, message: str) -> bytes:
        return self._stream.broken(status, message)

    def _passed(self, event: bytes) -> bytes:
        return b""

    def _finish(self, event: bytes) -> bytes:
        return self._send(is_over=True) + self._stream.finish(self._ending, self._usage)

    def _chunk(self, event: bytes, data: bytes) -> bytes:
        return self._translate_chunk(self._normalizer.read(data))

    def _translate_chunk(self, chunk: dict[str, Any]) -> bytes:
        sent = b""
        if not self._begun:
            self._begun = True
            sent = self._stream.begin(chunk)
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk["choices"]:
            before = len(self._held)
            self._hold(choice.get("delta") or {}, choice)
            if len(self._held) > before:
                sent += self._send()
            if choice.get("finish_reason"):
                self._ending, self._has_finished = choice, True
        return sent

    def _hold(self, delta: dict[str, Any], choice: dict[str, Any]) -> None:
        # vLLM's older and newer field.
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            self._held.append(_Piece("reasoning", thought))
        if text := delta.get("content"):
            logprobs = (choice.get("logprobs") or {}).get("content") or []
            self._held.append(_Piece("text", text, logprobs))
        if refusal := delta.get("refusal"):
            self._held.append(_Piece("refusal", refusal))
        if delta.get("function_call"):
            raise ValueError("a call of the older form, 'function_call'")
        for piece in delta.get("tool_calls") or ():
            if piece.get("custom"):
                raise ValueError("a call of a custom tool, and functions were offered")
            call = self._normalizer.choices[choice["index"]].calls[piece["index"]]
            arguments = (piece.get("function") or {}).get("arguments") or ""
            if arguments or call.number >= self._num_calls:
                self._held.append(_Piece(f"call {call.number}", arguments, call=call))

    def _send(self, is_over: bool = False) -> bytes:
        """Send what is held, but for what comes while a tool call is incomplete.

        The pieces of one thing go out together. A call begins when its first arguments or something
        else has come, as its name may come in pieces, too. A call ends, as in ``Normalizer``, when
        its arguments are complete and something else comes after them.
        """
        if len(self._held) == 1 and self._held[0].text and self._call in ("", self._held[0].kind):
            piece = self._held.pop()
            return self._send_piece(piece, piece.text, piece.logprobs)
        sent, newest = b"", self._held[-1].kind if self._held else ""
        while self._held:
            kind = self._held[0].kind
            may_go_on = newest == self._call or not is_object(self._arguments)
            if self._call and not is_over and may_go_on:
                kind = self._call
            pieces = [piece for piece in self._held if piece.kind == kind]
            others = [piece for piece in self._held if piece.kind != kind]
            text = "".join(piece.text for piece in pieces)
            if not pieces or not (text or others or is_over):
                break
            self._held = others
            sent += self._send_piece(pieces[0], text, [one for p in pieces for one in p.logprobs])
        return sent

    def _send_piece(self, piece: _Piece, text: str, logprobs: Sequence[Any]) -> bytes:
        if piece.call is None:
            self._call = ""
            return self._stream.text(piece.kind, text, list(logprobs))
        start = b""
        if self._call != piece.kind:
            self._call, self._arguments, self._num_calls = piece.kind, "", piece.call.number + 1
            start = self._stream.begin_call(piece.kind, piece.call.call_id, piece.call.name)
        self._arguments += text
        return start + (self._stream.arguments(text) if text else b"")


class TranslatedDialect(Dialect):
    """An API of which every call is answered by a chat completion, and that is recorded."""

    error_body = staticmethod(error_body)
    """Makes an error in this API's shape."""

    def read(
        self, body: bytes, history: ResponseHistory = NO_HISTORY, attempt_id: str = ""
    ) -> Exchange:
        try:
            request = msgspec.json.decode(body)
        except NOT_JSON as error:
            raise RefusedError(400, f"the request body is not valid JSON: {error}") from None
        try:
            fields = Fields(request)
            exchange = self.translate(fields, history, attempt_id)
            exchange.degraded = fields.degraded
            return exchange
        except FieldError as error:
            raise RefusedError(400, str(error)) from None

    def translate(self, request: Fields, history: ResponseHistory, attempt_id: str) -> Exchange:
        """The call of a request; for the arguments see ``Dialect.read``.

        Raises:
            FieldError: A field is wrong, or cannot be translated.
        """
        raise NotImplementedError

    def error(self, refused: RefusedError) -> bytes:
        message = error_message(refused.backend_body, refused.message)
        return self.error_body(refused.status, message, refused.code)


def error_message(body: bytes | None, otherwise: str) -> str:
    """The sentence in the body of a backend's error."""
    with suppress(*NOT_JSON):
        answer = msgspec.json.decode(body or b"")
        if isinstance(answer, dict):
            said = answer.get("message") or otherwise
            return message_of(answer.get("error") or said)
    return otherwise


def server_sent_event(kind: str, fields: Mapping[str, Any]) -> bytes:
    """An event with a name, as Anthropic and the Responses API send them."""
    return b"event: " + kind.encode() + b"\ndata: " + dumps({"type": kind, **fields}) + b"\n\n"
