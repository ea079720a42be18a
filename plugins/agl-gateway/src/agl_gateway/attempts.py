"""Whose calls are taken: the attempts that are open, and their calls in flight."""

import asyncio
import hmac
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from agl.errors import AglError, StoreUnavailableError
from agl.store.base import LightningStore
from agl_gateway.asgi import Interruptible
from agl_gateway.errors import RefusedError
from agl_gateway.request_changes import Conversation
from agl_http.tokens import read_token

LOOK_AGAIN_SECONDS = 5.0
"""So old what is known of an attempt may be: one that the store has ended is refused from then."""
MAX_KNOWN = 4096
MAX_ENDED = 65536
OPEN = ("preparing", "running", "unresponsive")


class RolloutSettings(NamedTuple):
    """What a call needs to know of its rollout."""

    mode: str | None = None
    """``train``, ``val`` or ``test``."""
    seed: int | None = None
    """What the seeds of its calls come from."""


@dataclass(slots=True, eq=False)
class OpenAttempt:
    """What is known of an attempt that may call."""

    calls: set[Interruptible] = field(default_factory=set[Interruptible])
    """Those in flight."""
    conversations: defaultdict[bytes, Conversation] = field(
        default_factory=lambda: defaultdict(Conversation)
    )
    """By their openings; their calls are numbered."""
    rollout: RolloutSettings | None = None
    known_until: float = 0.0


class Attempts:
    """Looks attempts and their tokens up in the store of the moment, and remembers them."""

    def __init__(self, get_store: Callable[[], LightningStore]) -> None:
        self._get_store = get_store
        self._open: OrderedDict[tuple[str, str], OpenAttempt] = OrderedDict()
        self._ended: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._tokens: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    async def opens(self, token: str, rollout_id: str, attempt_id: str) -> bool:
        """Whether a token is one of role ``model`` for this attempt.

        Raises:
            RefusedError: Nobody can say now.
        """
        key, given = (rollout_id, attempt_id), token.encode(errors="replace")
        if hmac.compare_digest(self._tokens.get(key, b""), given):
            return True
        try:
            grant = await read_token(self._get_store(), token)
        except StoreUnavailableError as error:
            why = f"the token of attempt {attempt_id!r} cannot be looked up now: {error}"
            raise RefusedError(503, why) from None
        except AglError as error:
            why = f"this gateway cannot look up the token of attempt {attempt_id!r}: {error}"
            raise RefusedError(500, why, "tokens_unknown") from None
        if grant is None or (grant.role, grant.rollout_id, grant.attempt_id) != ("model", *key):
            return False
        self._tokens[key] = given
        if len(self._tokens) > MAX_KNOWN:
            self._tokens.popitem(last=False)
        return True

    async def take(self, rollout_id: str, attempt_id: str) -> OpenAttempt:
        """The attempt, if it may call.

        Raises:
            RefusedError: It is unknown or has ended.
            StoreUnavailableError: Nobody can say now.
        """
        key = (rollout_id, attempt_id)
        found = self._open.get(key)
        if found is not None and time.monotonic() < found.known_until:
            return found
        if key in self._ended:
            raise _ended(rollout_id, attempt_id, "its agent has finished")
        try:
            attempts = await self._get_store().query_attempts(rollout_id)
        except StoreUnavailableError:
            if found is not None:
                return found
            raise
        status = next((one.status for one in attempts if one.attempt_id == attempt_id), None)
        if status is None:
            raise RefusedError(
                404,
                f"unknown attempt {attempt_id!r} of rollout {rollout_id!r}; take the address from "
                "ProxyLLM.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id), and see "
                "that gateway and runner use one store",
                "unknown_attempt",
            )
        if status not in OPEN:
            self._note_end(key)
            raise _ended(rollout_id, attempt_id, f"its status is {status!r}")
        found = self._open.setdefault(key, OpenAttempt())
        found.known_until = time.monotonic() + LOOK_AGAIN_SECONDS
        if len(self._open) > MAX_KNOWN:
            idle = [key for key, attempt in self._open.items() if not attempt.calls]
            for key in idle[: len(self._open) - MAX_KNOWN]:
                del self._open[key]
        return found

    async def end(self, rollout_id: str, attempt_id: str) -> None:
        """Take no more calls of this attempt, and break off those in flight."""
        key = (rollout_id, attempt_id)
        found = self._open.get(key)
        self._note_end(key)
        if found is not None and found.calls:
            tasks = [call.task for call in found.calls]
            for call in list(found.calls):
                call.interrupt(_ended(rollout_id, attempt_id, "its agent has finished"))
            await asyncio.wait(tasks)

    def _note_end(self, key: tuple[str, str]) -> None:
        self._open.pop(key, None)
        self._ended[key] = None
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)


def _ended(rollout_id: str, attempt_id: str, why: str) -> RefusedError:
    return RefusedError(
        410,
        f"attempt {attempt_id!r} of rollout {rollout_id!r} takes no more calls: {why}",
        "attempt_ended",
    )
