"""A small, real, OpenAI-compatible model server for tests: it answers with what it was told.

Chat completions and completions (streaming or not) and the list of models, with token ids and
log-probabilities in vLLM's format where a request asks for them. One token is one word between
spaces, and a prompt is rendered so that the next turn's prompt begins with this turn's prompt and
answer.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from agl_http.layers import EVENTS, JSON, Receive, Scope, Send, begin, read_body, send_whole
from agl_http.server import ServerThread

Message = dict[str, Any]

END = "<|end|>"


@dataclass(frozen=True)
class RawReply:
    """An answer that is sent as it is: an error, HTML, broken JSON."""

    status: int
    body: bytes
    content_type: str = "application/json"


Reply = str | Message | RawReply
"""What to answer: the content, or a whole assistant message (tool calls), or raw bytes."""


@dataclass
class Vocabulary:
    """Words and their ids, in order of first appearance."""

    ids: dict[str, int] = field(default_factory=dict[str, int])

    def encode(self, words: Sequence[str]) -> list[int]:
        """One id per word; an unseen word gets the next free id."""
        return [self.ids.setdefault(word, len(self.ids)) for word in words]

    def decode(self, token_ids: Sequence[int]) -> list[str]:
        """The words of ``token_ids``."""
        words = list(self.ids)
        return [words[token_id] for token_id in token_ids]


class EchoLLM:
    """A model server on a free port of 127.0.0.1, for as long as the ``with`` block lasts.

    Args:
        reply: What to answer to a request body; by default the last user message. It may return a
            string, an assistant message (with ``tool_calls``, ``reasoning_content``), or a
            ``RawReply``. Called in the server's thread.
        models: What ``/v1/models`` lists; any model name is answered.
        latency_seconds: Wait at least so long before the answer, and between the chunks of a
            stream.
        model_version: Sent as ``weight_versions`` to requests with ``return_weight_versions``.
    """

    def __init__(
        self,
        reply: Callable[[dict[str, Any]], Reply] | None = None,
        *,
        models: Sequence[str] = ("echo",),
        latency_seconds: float = 0.0,
        model_version: str = "0",
    ) -> None:
        self.reply = reply or last_user_message
        self.models = list(models)
        self.latency_seconds = latency_seconds
        self.model_version = model_version
        self.vocabulary = Vocabulary()
        self.requests: list[dict[str, Any]] = []
        """Bodies of the calls, in order of arrival."""
        self.request_headers: list[dict[str, str]] = []
        """Their headers, names in lower case."""
        self._server = ServerThread(self, drain_seconds=1.0)

    @property
    def url(self) -> str:
        """Base address for an OpenAI client, ending in ``/v1``."""
        return f"{self._server.url}/v1"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.stop()

    def render(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> list[int]:
        """Token ids of a prompt, the opening of the assistant's turn included."""
        words = json.dumps(list(tools)).split() if tools else []
        for message in messages:
            words.append(f"<|{message['role']}|>")
            words.extend(piece.strip() for piece in _pieces(message))
            words.append(END)
        return self.vocabulary.encode([*words, "<|assistant|>"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The server, as an ASGI application."""
        if scope["type"] != "http":
            return
        path = str(scope["path"])
        if path == "/v1/models" and scope["method"] == "GET":
            data = [{"id": name, "object": "model", "owned_by": "echo"} for name in self.models]
            await send_whole(send, 200, _json({"object": "list", "data": data}), JSON)
        elif path in _ROUTES and scope["method"] == "POST":
            body = await read_body(receive, sys.maxsize)
            if body is not None:
                await self._answer(scope, json.loads(body), send, _ROUTES[path])
        else:
            error = {"message": f"no such path: {path}"}
            await send_whole(send, 404, _json({"error": error}), JSON)

    async def _answer(
        self, scope: Scope, request: dict[str, Any], send: Send, make: "type[_Answer]"
    ) -> None:
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        self.request_headers.append(headers)
        self.requests.append(request)
        number = len(self.requests)
        reply = self.reply(request)
        await self._wait()
        if isinstance(reply, RawReply):
            await send_whole(send, reply.status, reply.body, reply.content_type.encode())
            return
        if isinstance(reply, str):
            reply = {"role": "assistant", "content": reply}
        answer = make(self, request, reply, f"{make.prefix}-{number}")
        if not request.get("stream"):
            await send_whole(send, 200, _json(answer.completion()), JSON)
            return
        await begin(send, 200, EVENTS)
        for chunk in answer.chunks():
            event = b"data: " + _json(chunk) + b"\n\n"
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await self._wait()
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})

    async def _wait(self) -> None:
        """Let ``latency_seconds`` pass: all of it, where an event loop's timer may be early."""
        end = time.perf_counter() + self.latency_seconds
        while (left := end - time.perf_counter()) > 0:  # noqa: ASYNC110 - no event ends it
            await asyncio.sleep(left)


class _Answer:
    """One answer, as a completion object or as the chunks of a stream."""

    prefix = "chatcmpl"
    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def __init__(
        self, server: EchoLLM, request: dict[str, Any], message: Message, response_id: str
    ) -> None:
        self.message = message
        self.num_choices = int(request.get("n") or 1)
        self.wants_ids = bool(request.get("return_token_ids"))
        self.wants_logprobs = bool(request.get("logprobs"))
        options: dict[str, Any] = request.get("stream_options") or {}
        self.wants_usage = bool(options.get("include_usage"))
        self.prompt_ids = self.render(server, request)
        pieces = [*_pieces(message), END]
        self.token_ids = server.vocabulary.encode([piece.strip() for piece in pieces])
        self.tokens: list[dict[str, Any]] = [
            {"token": piece, "logprob": logprob(token_id), "bytes": None, "top_logprobs": []}
            for piece, token_id in zip(pieces, self.token_ids, strict=True)
        ]
        self.head = {"id": response_id, "created": 1_700_000_000, "model": request.get("model")}
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        self.finish: dict[str, Any] = {"finish_reason": reason}
        if request.get("return_weight_versions"):
            version = {"version": server.model_version, "start": 0, "end": len(self.token_ids)}
            self.finish["weight_versions"] = [version]
        sampled = len(self.token_ids) * self.num_choices
        self.usage = {
            "prompt_tokens": len(self.prompt_ids),
            "completion_tokens": sampled,
            "total_tokens": len(self.prompt_ids) + sampled,
        }

    def render(self, server: EchoLLM, request: dict[str, Any]) -> list[int]:
        return server.render(request["messages"], request.get("tools") or ())

    def completion(self) -> dict[str, Any]:
        choice = self._choice(0, "message", self.message, 0, len(self.token_ids)) | self.finish
        whole = {
            **self.head,
            "object": self.kind,
            "choices": [{**choice, "index": index} for index in range(self.num_choices)],
            "usage": self.usage,
        }
        return self._with_prompt(whole)

    def chunks(self) -> Iterator[dict[str, Any]]:
        for index in range(self.num_choices):
            opening = self._choice(index, "delta", {"role": "assistant", "content": ""}, 0, 0)
            opening.pop("token_ids", None)
            yield self._with_prompt(self._chunk(opening))
            for delta, start, stop in self._deltas():
                yield self._chunk(self._choice(index, "delta", delta, start, stop))
            end = len(self.token_ids)
            yield self._chunk(self._choice(index, "delta", {}, end - 1, end) | self.finish)
        if self.wants_usage:
            yield {**self.head, "object": self.chunk_kind, "choices": [], "usage": self.usage}

    def _deltas(self) -> Iterator[tuple[Message, int, int]]:
        position = 0
        for key in ("reasoning_content", "content"):
            for piece in _split(self.message.get(key)):
                yield {key: piece}, position, position + 1
                position += 1
        for index, call in enumerate(self.message.get("tool_calls") or ()):
            words = len(_call_pieces(call))
            yield {"tool_calls": [{"index": index, **call}]}, position, position + words
            position += words

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        return {**self.head, "object": self.chunk_kind, "choices": [choice]}

    def _with_prompt(self, answer: dict[str, Any]) -> dict[str, Any]:
        return answer | ({"prompt_token_ids": self.prompt_ids} if self.wants_ids else {})

    def _choice(
        self, index: int, key: str, message: Message, start: int, stop: int
    ) -> dict[str, Any]:
        content = self.tokens[start:stop]
        return {
            "index": index,
            key: message,
            "logprobs": {"content": content} if self.wants_logprobs and content else None,
            "finish_reason": None,
            **({"token_ids": self.token_ids[start:stop]} if self.wants_ids else {}),
        }


class _TextAnswer(_Answer):
    """The continuation of a prompt. There are no roles, so a stream opens with nothing."""

    prefix = "cmpl"
    kind = chunk_kind = "text_completion"

    def render(self, server: EchoLLM, request: dict[str, Any]) -> list[int]:
        prompt = request["prompt"]
        if isinstance(prompt, str):
            return server.vocabulary.encode(prompt.split())
        return list(prompt)

    def _with_prompt(self, answer: dict[str, Any]) -> dict[str, Any]:
        choices = [super(_TextAnswer, self)._with_prompt(one) for one in answer["choices"]]
        return {**answer, "choices": choices}

    def _choice(
        self, index: int, key: str, message: Message, start: int, stop: int
    ) -> dict[str, Any]:
        choice = super()._choice(index, key, message, start, stop)
        del choice[key]
        if choice["logprobs"] is not None:
            content = choice["logprobs"]["content"]
            choice["logprobs"] = {
                "tokens": [token["token"] for token in content],
                "token_logprobs": [token["logprob"] for token in content],
                "top_logprobs": None,
                "text_offset": [],
            }
        return {**choice, "text": str(message.get("content") or "")}


_ROUTES = {"/v1/chat/completions": _Answer, "/v1/completions": _TextAnswer}


def last_user_message(request: dict[str, Any]) -> str:
    """The text of the last message whose role is ``user``; empty when there is none.

    Of a completion: its prompt, where that is text.
    """
    if "prompt" in request:
        return request["prompt"] if isinstance(request["prompt"], str) else ""
    for message in reversed(request["messages"]):
        if message["role"] == "user":
            return _text(message.get("content"))
    return ""


def logprob(token_id: int) -> float:
    """What the server reports for a token: a made-up number below zero that tells ids apart."""
    return -(1 + token_id % 97) / 128


def _pieces(message: Message) -> list[str]:
    calls = message.get("tool_calls") or ()
    return [
        *_split(message.get("reasoning_content")),
        *_split(message.get("content")),
        *(piece for call in calls for piece in _call_pieces(call)),
    ]


def _call_pieces(call: dict[str, Any]) -> list[str]:
    return ["<|call|>", call["function"]["name"], *_split(call["function"]["arguments"])]


def _split(content: Any) -> list[str]:
    """Words with the white space that follows them; joined they are the content again."""
    return re.findall(r"\S+\s*|\s+", _text(content))


def _text(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text", part)) for part in content)  # pyright: ignore
    return str(content or "")


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
