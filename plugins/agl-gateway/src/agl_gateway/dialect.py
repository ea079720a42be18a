"""What the gateway must know of an API that agents speak; chat completions are the first."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from agl_gateway.errors import NOT_JSON, WRONG_FORM, RefusedError, error_body, shorten
from agl_gateway.normal_form import WholeAnswer, is_normal_chunk, read_object, read_objects
from agl_gateway.normalizer import UNFINISHED, BrokenAnswerError, Normalizer, wrong_form
from agl_gateway.response_history import NO_HISTORY, ResponseHistory

EXTENSIONS = {
    "return_token_ids": "return_token_ids",
    "logprobs": "logprobs",
    "weight_versions": "return_weight_versions",
}
"""Callback name -> the field of the request that it sets to true."""

TOKENIZE = "../tokenize"
"""Where vLLM and others count tokens, beside their ``/v1``."""

NULL = Raw(b"null")
TRUE = Raw(b"true")
WITH_USAGE = Raw(b'{"include_usage":true}')
_OFF = (b"null", b"false")

dumps = msgspec.json.Encoder().encode
"""JSON as vLLM and OpenAI write it: compact, unescaped."""


class Exchange:
    """One call of an agent: its request as the backend takes it, and the way back.

    This one is of chat completions, which pass through as they are, but for what the gateway asked
    for and the agent did not, and for chunks of a form that clients read otherwise than it is
    recorded. Other dialects replace what differs. What is *recorded* is ``request`` and the
    backend's answer, a whole one as ``normalizer.read_whole`` gives it and the chunks of a stream
    as they came, so every dialect is recorded in one form.
    """

    added: Mapping[str, Raw] = dict.fromkeys(EXTENSIONS, TRUE)
    """Callback name -> what its field is set to."""
    choice_keys: Mapping[str, Sequence[str]] = {
        "return_token_ids": ("token_ids",),
        "weight_versions": ("weight_versions",),
    }
    """Callback name -> what it brings into each choice of the answer."""

    def __init__(self, request: bytes, fields: dict[str, Raw]) -> None:
        self.request = request
        self.asked = request
        """The request before anything was forced upon it: what a recording knows it by."""
        self.fields = fields
        self.model: Any = msgspec.json.decode(fields["model"]) if "model" in fields else None
        """Which model is asked for; the caller checks that it is a known one."""
        self.is_stream = fields.get("stream", NULL) == TRUE
        self.shown: tuple[str, ...] = ()
        """Callback names: what stays in the answer although the agent did not ask for it."""
        self.degraded: list[str] = []
        """What of the request the backend does not get, and why."""
        self._removed: tuple[str, ...] = ()
        self._hides_usage = False
        """Whether the agent did not ask for the event with the usage."""
        self._rest = b""
        self._normalizer = Normalizer()
        self.failure: str | None = None
        """What the agent was told of a stream that broke off."""
        self.is_over = False
        """The agent was told that its stream has ended, or that it broke off."""
        self._has_finished = False

    def body_for(self, model: str, callbacks: Iterable[str]) -> bytes:
        """The body to send, for a backend that calls the model so.

        Args:
            model: The backend's name of the model.
            callbacks: Names out of ``EXTENSIONS`` to ask for; those that the agent did not ask for
                itself are taken out of the answer again, unless they are ``shown``.
        """
        fields = self.fields
        self._normalizer.request = self.request
        unasked = [name for name in callbacks if bytes(fields.get(EXTENSIONS[name], NULL)) in _OFF]
        self._removed = tuple(name for name in unasked if name not in self.shown)
        self._removed_keys = [
            key for name in self._removed for key in self.choice_keys.get(name, ())
        ]
        if model == self.model and not unasked:
            return self.request
        added = {EXTENSIONS[name]: self.added[name] for name in unasked}
        # How many tokens the backend counts tells whether it returns the ids of all of them.
        if "return_token_ids" in self._removed and self.is_stream:
            self._hides_usage = bytes(fields.get("stream_options", NULL)) == b"null"
            if self._hides_usage:
                added["stream_options"] = WITH_USAGE
        return dumps({**fields, "model": model, **added})

    def whole(self, answer: WholeAnswer) -> bytes:
        """What the agent gets for a complete answer; a ``ValueError`` if it is of another kind."""
        removed = self._remove(answer.fields, answer.choices)
        return dumps(answer.fields) if removed else answer.body

    def chunk(self, data: bytes) -> bytes:
        """What the agent gets for the next piece of a stream; pieces end anywhere."""
        *events, self._rest = split_events(self._rest + data)
        return b"".join([self._event(event) for event in events])

    def end(self) -> bytes:
        """What the agent still gets when the stream has ended."""
        rest, self._rest = self._rest, b""
        return self._event(rest) if rest.strip() else rest

    def broken(self, status: int, message: str) -> bytes:
        """What tells the agent that its stream breaks off; nothing when it was told before."""
        if self.is_over:
            return b""
        self.is_over, self.failure = True, message
        return self._say_broken(status, message)

    def _say_broken(self, status: int, message: str) -> bytes:
        return b"data: " + error_body(status, message) + b"\n\n"

    def _event(self, event: bytes) -> bytes:
        if self.is_over:
            return b""
        data = event_data(event)
        if not data:
            return self._passed(event)
        try:
            if data != b"[DONE]":
                return self._chunk(event, data)
            if not self._has_finished:
                return self.broken(502, UNFINISHED)
            self._normalizer.end()
            sent = self._finish(event)
            self.is_over = True
            return sent
        except BrokenAnswerError as failure:
            told = self.broken(502, str(failure))
            return (failure.is_event and self._passed(event)) or told
        except WRONG_FORM as failure:
            is_end = data == b"[DONE]"
            return self.broken(502, str(failure if is_end else wrong_form(data, failure)))

    def _passed(self, event: bytes) -> bytes:
        """What the agent gets of a comment, or of an event with which the server says its error."""
        return event

    def _finish(self, event: bytes) -> bytes:
        return event

    def _chunk(self, event: bytes, data: bytes) -> bytes:
        if self._normalizer.needs_every_chunk or not is_normal_chunk(data):
            chunk = self._normalizer.read(data)
            self._has_finished |= any(one.get("finish_reason") for one in chunk["choices"])
            if chunk != msgspec.json.decode(data):
                data = dumps(chunk)
                event = b"data: " + data + b"\n\n"
        else:
            self._normalizer.highest = 0
        if not self._removed:
            return event
        fields = read_object(data)
        choices = read_objects(fields["choices"]) if "choices" in fields else []
        if self._hides_usage and "choices" in fields and not choices:
            return b""
        removed = self._remove(fields, choices)
        return b"data: " + dumps(fields) + b"\n\n" if removed else event

    def _remove(self, fields: dict[str, Raw], choices: list[dict[str, Raw]]) -> bool:
        """Take out what the agent did not ask for; whether there was any."""
        removed = self._removed
        found = "return_token_ids" in removed and fields.pop("prompt_token_ids", None) is not None
        edited = False
        for choice in choices:
            for key in self._removed_keys:
                edited |= choice.pop(key, None) is not None
            if "logprobs" in removed and choice.get("logprobs", NULL) != NULL:
                choice["logprobs"] = NULL
                edited = True
        if edited:
            fields["choices"] = Raw(dumps(choices))
        return found or edited


class Dialect:
    """An API that agents speak: how to read a request, and how it says that something is wrong.

    This one is chat completions; others replace what differs. Put new ones into ``DIALECTS`` of
    ``agl_gateway.app``, by the end of their address.
    """

    operation = "chat"
    """OpenTelemetry's name of what is done, for the record; empty where no model is called."""
    path = "chat/completions"
    """Where the backend takes what ``Exchange.body_for`` makes, under its ``api_base``."""

    def read(
        self, body: bytes, history: ResponseHistory = NO_HISTORY, attempt_id: str = ""
    ) -> Exchange:
        """Take a request apart.

        Args:
            body: As it came.
            history: What it may go on from, in an API that knows such a thing.
            attempt_id: Whose the call is; empty for that of nobody, for which nothing is kept.

        Raises:
            RefusedError: It is none.
        """
        fields = read_request(body)
        if not bytes(fields.get("messages", NULL)).startswith(b"["):
            raise RefusedError(400, "the request has no 'messages'; expected a list of messages")
        return Exchange(body, fields)

    def error(self, refused: RefusedError) -> bytes:
        """The body of an answer that is an error."""
        return refused.body()


class CompletionExchange(Exchange):
    """One call of ``/v1/completions``."""

    # `logprobs` is the number of alternatives that are listed per token.
    added: Mapping[str, Raw] = {**Exchange.added, "logprobs": Raw(b"1")}
    choice_keys: Mapping[str, Sequence[str]] = {
        **Exchange.choice_keys,
        "return_token_ids": ("token_ids", "prompt_token_ids"),
    }


class Completions(Dialect):
    """Completions of a prompt, which may be text or token ids; they pass through, too."""

    operation = "text_completion"
    path = "completions"

    def read(
        self, body: bytes, history: ResponseHistory = NO_HISTORY, attempt_id: str = ""
    ) -> Exchange:
        fields = read_request(body)
        if "prompt" not in fields:
            raise RefusedError(400, "the request has no 'prompt'; expected a text or token ids")
        return CompletionExchange(body, fields)


def read_request(body: bytes) -> dict[str, Raw]:
    """The fields of a request's JSON object; a ``RefusedError`` if it is none."""
    try:
        return read_object(body)
    except msgspec.ValidationError:
        raise RefusedError(
            400, f"expected a JSON object as request body, got {shorten(body)}"
        ) from None
    except NOT_JSON as error:
        raise RefusedError(400, f"the request body is not valid JSON: {error}") from None


def event_data(event: bytes) -> bytes:
    """What stands after ``data:`` in an event; empty for a comment."""
    if event.startswith(b"data:") and event.count(b"\n") <= 2:
        return event[5:].strip()
    lines = event.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))


def events_of(stream: bytes) -> list[bytes]:
    """The data of each event of a stream."""
    return [data for data in map(event_data, split_events(stream)) if data]


def split_events(data: bytes) -> list[bytes]:
    """The events in ``data``, each with its blank line; the last may be a part of one."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    *events, rest = data.split(b"\n\n")
    return [*(event + b"\n\n" for event in events), rest]
