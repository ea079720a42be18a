"""What the gateway answers when it cannot answer, in the shape of OpenAI's errors."""

import json
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

ErrorKind = Literal["infrastructure", "request"]
"""Whose fault the failure of a call is: of servers or the network, or of the request or its
sender. An algorithm must not take the first for a bad answer of the model."""

OURS = (401, 402, 403, 404, 405, 408, 409, 425, 429, 499)
"""Of a backend below 500 that say nothing about the request: address, account, key and name of the
model are the gateway's."""

NO_RETRY: Mapping[str, str] = {"x-should-retry": "false"}
"""Of an answer that will be the same again; the official clients try many statuses again."""


class RefusedError(Exception):
    """The call ends here: this is what its agent gets.

    Args:
        status: HTTP status.
        message: A sentence for a person.
        code: OpenAI's code for it, where it has one.
        backend_body: What the backend said, when it was the backend that refused.
        headers: Of the answer, beside its content type. None lets a client that gets a 503 ask
            again in a second.
        kind: Whose fault it is; None goes by the status.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        *,
        backend_body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        kind: ErrorKind | None = None,
    ) -> None:
        super().__init__(message)
        self.backend_body = backend_body
        retry = {"retry-after": "1"} if status == 503 else {}
        self.headers: Mapping[str, str] = retry if headers is None else headers
        self.status = status
        self.message = message
        self.code = code
        self.kind: ErrorKind = kind or ("infrastructure" if status >= 500 else "request")

    def body(self) -> bytes:
        """The JSON body: the backend's own, or one in the shape of OpenAI's."""
        if is_json_object(self.backend_body):
            return self.backend_body
        return error_body(self.status, self.message, self.code)


def kind_of_status(status: int) -> ErrorKind:
    """Whose fault it is that a backend answers with this status."""
    return "request" if 400 <= status < 500 and status not in OURS else "infrastructure"


NOT_JSON = (ValueError, RecursionError)
"""What reading JSON raises; the second one for very many brackets."""
WRONG_FORM = (ValueError, TypeError, KeyError, AttributeError)
"""What reading an answer raises that has other things in its places than an answer has."""


class ClientGoneError(Exception):
    """Who asked has closed the connection."""


class BrokenOffError(ConnectionError):
    """The backend ended its answer in the middle."""


def is_json_object(body: bytes | str) -> bool:
    """Whether that is what a body, or a text, is."""
    try:
        return isinstance(msgspec.json.decode(body), dict)
    except NOT_JSON:
        return False


def message_of(error: Any) -> str:
    """The sentence in an error of OpenAI's form, or of what stands in its place."""
    return str(error.get("message") or error) if isinstance(error, dict) else str(error)


def error_body(status: int, message: str, code: str | None = None) -> bytes:
    """``{"error": {"message", "type", "param", "code"}}``."""
    kind = "invalid_request_error" if status < 500 else "api_error"
    error = {"message": message, "type": kind, "param": None, "code": code}
    return json.dumps({"error": error}, separators=(",", ":"), ensure_ascii=False).encode()


def shorten(body: bytes, limit: int = 300) -> str:
    """The beginning of a body that was not understood, for a message."""
    text = body[: 4 * limit].decode("utf-8", "replace").strip()
    return text if len(text) <= limit else f"{text[:limit]}…"
