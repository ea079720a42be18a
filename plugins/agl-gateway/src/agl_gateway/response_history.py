"""Responses that later calls of their attempt may go on from, by ``previous_response_id``."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from agl_gateway.errors import RefusedError
from agl_records.dialects.responses import SEND_ALL

MAX_BYTES = 16 * 2**20
"""Of one attempt, as JSON; then its oldest responses go."""
OVERHEAD = 512
"""What a response costs beside its items, about."""
MAX_BYTES_OF_ALL = 512 * 2**20
"""Then the responses of the attempt go that has been silent for longest."""


@dataclass(slots=True, eq=False)
class _Response:
    before: "_Response | None"
    items: bytes | None
    """What the request added, and the answer, as JSON; None once it is forgotten."""


@dataclass(slots=True, eq=False)
class _AttemptResponses:
    responses: OrderedDict[str, _Response] = field(default_factory=OrderedDict[str, _Response])
    size: int = 0


class ResponseHistory:
    """What every attempt may go on from; lives as long as its gateway."""

    def __init__(self) -> None:
        self._attempts: OrderedDict[str, _AttemptResponses] = OrderedDict()
        self._size = 0

    def forget(self, attempt_id: str) -> None:
        if attempt_id in self._attempts:
            self._size -= self._attempts.pop(attempt_id).size

    def items(self, attempt_id: str, response_id: str) -> list[Any]:
        """The items of a response and of all before it, in their order.

        Raises:
            RefusedError: They are not all kept.
        """
        attempt = self._attempts.get(attempt_id)
        response = attempt.responses.get(response_id) if attempt else None
        if response is None:
            raise _unknown(attempt_id, response_id)
        pieces: list[bytes] = []
        while response is not None:
            if response.items is None:
                raise _unknown(attempt_id, response_id)
            pieces.append(response.items)
            response = response.before
        self._attempts.move_to_end(attempt_id)
        return [item for piece in reversed(pieces) for item in msgspec.json.decode(piece)]

    def keep(
        self, attempt_id: str, response_id: str, before: str | None, items: Sequence[Any]
    ) -> None:
        """Keep what a request added to the response ``before`` it, and its answer, while room is.

        Of two responses with one id neither is kept: nobody knows which is meant.
        """
        attempt = self._attempts.setdefault(attempt_id, _AttemptResponses())
        self._attempts.move_to_end(attempt_id)
        parent = None if before is None else attempt.responses.get(before)
        if response_id in attempt.responses:
            self._drop(attempt, response_id)
            return
        if before is not None and parent is None:
            return  # it went while this one was being answered
        response = _Response(parent, msgspec.json.encode(items))
        attempt.responses[response_id] = response
        self._grow(attempt, _size(response))
        while attempt.size > MAX_BYTES:
            self._drop(attempt, next(iter(attempt.responses)))
        while self._size > MAX_BYTES_OF_ALL:
            self.forget(next(iter(self._attempts)))

    def _drop(self, attempt: _AttemptResponses, response_id: str) -> None:
        response = attempt.responses.pop(response_id)
        self._grow(attempt, -_size(response))
        response.items = None

    def _grow(self, attempt: _AttemptResponses, size: int) -> None:
        attempt.size += size
        self._size += size


def _size(response: _Response) -> int:
    return len(response.items or b"") + OVERHEAD


def _unknown(attempt_id: str, response_id: str) -> RefusedError:
    whose = f"attempt {attempt_id!r}" if attempt_id else "calls of no attempt"
    return RefusedError(
        400,
        f"previous_response_id: {response_id!r} is no response that this gateway keeps for "
        f"{whose}. It keeps those of calls without 'store': false until their attempt ends or the "
        f"gateway is restarted, and of one attempt the newest {MAX_BYTES // 2**20} MiB; {SEND_ALL}",
        "previous_response_not_found",
    )


NO_HISTORY = ResponseHistory()
