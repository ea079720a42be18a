"""One model call as the gateway saw it, and the span that it becomes."""

import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Raw, Struct

from agl.semconv import CLIENT_GONE, MODEL_CALL_SPAN, ModelCallAttributes as Key
from agl.store.packed_span import PackedSpan, indexed_items
from agl.utils.secrets import hide
from agl_gateway.answers import assemble
from agl_gateway.backend_answer import BackendAnswer, answer_attributes, as_text, read_answer
from agl_gateway.dialect import dumps
from agl_gateway.errors import NOT_JSON, ErrorKind

BYTES_PER_TOKEN = 4
"""Of JSON, where tokens must be estimated."""
SILENCE_SECONDS = 2.0
"""Of a backend in a stream: who leaves after that has waited for more of it."""

_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class Origin:
    """Who called."""

    rollout_id: str = ""
    """Empty for a call that belongs to no attempt, and so is not recorded."""
    attempt_id: str = ""
    agent_name: str = ""
    traceparent: bytes = b""
    """W3C header of the agent's own span, which becomes the parent of the record."""
    has_key: bool = False
    """Shows the gateway's key, and not the token of an attempt that our runners hand out."""


@dataclass(slots=True, eq=False)
class CallRecord:
    """A model call from its arrival to its end: the bytes, and the times.

    Nothing is read out of them before the answer has gone to the agent.
    """

    origin: Origin
    operation: str = "chat"
    provider: str = "openai"
    start_time: float = field(default_factory=lambda: time.time())
    _started: float = field(default_factory=lambda: time.perf_counter())
    first_token_time: float | None = None
    last_piece_time: float | None = None
    """When the backend has sent something of a stream."""
    end_time: float | None = None
    request: bytes = b""
    """As the backend's API would have it from the agent, without our additions."""
    answer: bytes | None = None
    """The backend's, token ids included: as ``normalizer.read_whole`` gives it, or as it came."""
    chunks: list[bytes] | None = None
    """Of a stream: what came of it."""
    status_code: int | None = None
    """What the agent got, or ``CLIENT_GONE``."""
    _size: int | None = None
    _known: BackendAnswer | None = None
    """What was read of the answer, for who reads it next; thousands of records wait at a time."""
    error: str | None = None
    error_kind: ErrorKind | None = None
    unreadable: list[str] | None = None
    """Fields of the answer that cannot be read, each with the reason."""
    overridden: list[str] | None = None
    """Parameters for which the agent asked in vain."""
    began: float = 0.0
    """By ``time.monotonic()``, as are the next two; the recorder sets them."""
    ended: float = 0.0
    due: float = 0.0
    """When it is written at the latest."""
    release_number: Callable[[], None] | None = None
    """Lets another call have its number, if the gateway gave it a seed."""

    @property
    def size(self) -> int:
        """Bytes of what was said, once the call has ended."""
        if self._size is None:
            answer = self.chunks or (self.answer or b"",)
            self._size = len(self.request) + sum(map(len, answer))
        return self._size

    def now(self) -> float:
        """The time, on a clock that began with this call and that nobody sets meanwhile."""
        return self.start_time + time.perf_counter() - self._started

    def end(self, error: str | None, kind: ErrorKind = "infrastructure") -> bool:
        """The call is over, with an answer or an error; False when it was over already."""
        if self.end_time is not None:
            return False
        self.end_time = self.now()
        if error is not None:
            self.error, self.error_kind = error, kind
            if self.release_number is not None and self.first_token_time is None:
                self.release_number()
        return True

    def client_gone(self, said: str) -> tuple[str, ErrorKind]:
        """Why there is no whole answer where the client has gone, and whose fault that is.

        Who waits for an answer and gives up has lost it, also for the rest of a stream; who leaves
        while a stream comes has seen enough.
        """
        silence = self.now() - (self.last_piece_time or self.start_time)
        if self.first_token_time is not None and silence < SILENCE_SECONDS:
            return said, "request"
        self.status_code = CLIENT_GONE
        return f"{said}, after {silence:.1f} s without anything from the backend", "infrastructure"

    def usage(self) -> tuple[int, int]:
        """Tokens of prompt and answer, for a budget; estimated where the backend says nothing."""
        answer = self._known = self._answer()
        if answer is None or not answer.choices:
            return 0, 0
        attributes = answer_attributes(answer, self.answer or b"")
        said = (attributes[Key.INPUT_TOKENS], attributes[Key.OUTPUT_TOKENS])
        texts = (self.request, attributes[Key.OUTPUT_MESSAGES])
        input_tokens, output_tokens = (
            len(text) // BYTES_PER_TOKEN if tokens is None else tokens
            for tokens, text in zip(said, texts, strict=True)
        )
        return input_tokens, output_tokens

    def pack(self) -> PackedSpan:
        """The one span of this call; the store gives it its number.

        Raises:
            ValueError: The agent sent something that cannot be read; ``without_content`` can be
                recorded still.
        """
        attributes = self._attributes()
        if self.error is not None:  # the text of a backend, which may say what key it was given
            attributes[Key.ERROR] = self.error = hide(self.error)
        origin = self.origin
        parent = _TRACEPARENT.fullmatch(origin.traceparent)
        trace_id = parent[1].decode() if parent else secrets.token_hex(16)
        parent_id = parent[2].decode() if parent else None
        span_id = secrets.token_hex(8)
        body: dict[str, Any] = {
            "rollout_id": origin.rollout_id,
            "attempt_id": origin.attempt_id,
            "sequence_id": 0,
            "trace_id": trace_id,
            "span_id": span_id,
            "parent_id": parent_id,
            "name": MODEL_CALL_SPAN,
            "status": {"status_code": "ERROR" if self.error else "OK", "description": self.error},
            "attributes": attributes,
            "events": (),
            "links": (),
            "start_time": self.start_time,
            "end_time": self.end_time,
            "context": _context(trace_id, span_id),
            "parent": _context(trace_id, parent_id) if parent_id else None,
            "resource": {"attributes": {}, "schema_url": ""},
            "writer": "gateway",
        }
        return PackedSpan(*indexed_items(body), body=dumps(body).decode(), writer="gateway")

    def without_content(self, error: Exception) -> "CallRecord":
        """The same call with nothing of what was said: what is left when that cannot be read."""
        self.request, self.answer, self.chunks = b"", None, None
        self._known = None
        self.error = self.error or f"the call could not be recorded whole: {error!r}"
        return self

    def _attributes(self) -> dict[str, Any]:
        request = _read_request(self.request) if self.request else _Request()
        answer, self._known = self._known or self._answer(), None
        end_time = self.end_time or self.start_time
        attributes: dict[str, Any] = {
            Key.OPERATION: self.operation,
            Key.PROVIDER: self.provider,
            Key.AGENT_NAME: self.origin.agent_name or None,
            Key.REQUEST_MODEL: as_text(request.model),
            Key.INPUT_MESSAGES: _json(request.messages) or _prompt(request.prompt),
            # Of a prompt that is no text.
            Key.PROMPT_DIGEST: sha256(request.prompt).hexdigest()[:32]
            if bytes(request.prompt)[:1] == b"["
            else None,
            Key.TOOL_DEFINITIONS: _json(request.tools) or _json(request.functions),
            **{
                key: value
                for name, key in _SAMPLING.items()
                if isinstance(value := getattr(request, name), int | float)
            },
            "gen_ai.output.type": "json" if request.is_constrained else None,
            Key.STATUS_CODE: self.status_code,
            Key.LATENCY: end_time - self.start_time,
        }
        if self.first_token_time is not None:
            attributes[Key.TIME_TO_FIRST_TOKEN] = self.first_token_time - self.start_time
        if answer is not None:
            attributes |= answer_attributes(answer, self.answer or b"")
        attributes[Key.UNREADABLE] = self.unreadable or None
        attributes[Key.OVERRIDDEN] = self.overridden
        attributes[Key.ERROR] = self.error
        attributes[Key.ERROR_KIND] = self.error_kind
        return {key: value for key, value in attributes.items() if value is not None}

    def _answer(self) -> BackendAnswer | None:
        if self.chunks is not None:
            stream = assemble(self.chunks, self.request)
            self.chunks = None
            if self.error is None and (problem := stream.problem()) is not None:
                self.error, self.error_kind = problem, "infrastructure"
            completion = stream.completion()
            self.answer = None if completion is None else dumps(completion)
        if self.answer is None:
            return None
        problem = None
        try:
            answer, self.unreadable = read_answer(self.answer)
            if not answer.choices:
                problem = "the backend's answer has no choice"
        except NOT_JSON as error:
            answer, problem = None, f"the backend's answer cannot be read: {error}"
        if self.error is None and problem is not None:
            self.error, self.error_kind = problem, "infrastructure"
        return answer


class _Sampling(Struct):
    """Settings of a request that are recorded as ``gen_ai.request.*``."""

    temperature: Any = None
    top_p: Any = None
    top_k: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None
    seed: Any = None


_SAMPLING = {name: f"gen_ai.request.{name}" for name in _Sampling.__struct_fields__}


class _Request(_Sampling):
    model: Any = None
    messages: Raw = Raw()
    prompt: Raw = Raw()
    tools: Raw = Raw()
    tool_choice: Any = None
    functions: Raw = Raw()
    """The older form of tools, and of the choice of one."""
    function_call: Any = None
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None

    @property
    def is_constrained(self) -> bool:
        """Whether the answer is held to a form, by OpenAI's fields or vLLM's."""
        form = self.response_format
        kind = form.get("type", "text") if isinstance(form, dict) else "text"
        of_vllm = (self.structured_outputs, self.guided_json, self.guided_regex)
        return (
            kind != "text"
            or self.tool_choice == "required"
            or (isinstance(self.tool_choice, dict) and self.tool_choice.get("mode") != "auto")
            or isinstance(self.function_call, dict)
            or any(one is not None for one in (*of_vllm, self.guided_choice, self.guided_grammar))
        )


_read_request = msgspec.json.Decoder(_Request).decode


def _json(raw: Raw) -> str | None:
    """What stands there, as it was sent; nothing for what says nothing."""
    text = bytes(raw)
    return None if text in (b"", b"null", b"[]", b'""') else text.decode()


def _prompt(raw: Raw) -> str | None:
    """The prompt of completions as a message; of token ids, the ids are recorded."""
    return dumps([{"role": "user", "content": raw}]).decode() if bytes(raw)[:1] == b'"' else None


def _context(trace_id: str, span_id: str) -> dict[str, Any]:
    return {"trace_id": trace_id, "span_id": span_id, "is_remote": False, "trace_state": {}}
