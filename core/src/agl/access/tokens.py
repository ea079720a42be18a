"""Tokens that a store makes, each for a role and a scope, with a secret that never leaves it."""

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from typing import Literal, cast, get_args
from urllib.parse import quote, unquote

from agl.errors import ConfigError
from agl.types.records import Record

Role = Literal["admin", "runner", "attempt", "model", "reader"]
"""``admin``: everything, as an algorithm needs. ``runner``: claim, and work on what it claimed.
``attempt``: add spans to one open attempt. ``model``: call the gateway for one attempt.
``reader``: look, without what tasks keep private."""

_SCOPED = ("attempt", "model")


class Grant(Record):
    """What a token allows."""

    role: Role
    rollout_id: str = ""
    """Of ``attempt`` and ``model``: whose."""
    attempt_id: str = ""
    expires: int = 0
    """Unix seconds; 0 for never."""


ADMIN = Grant(role="admin")


class Tokens:
    """Makes tokens, and knows its own again.

    A token is ``ROLE.GENERATION.EXPIRES.IDS.SIGNATURE``; the signature is the first 18 bytes of
    HMAC-SHA256 over what stands before it.

    Args:
        admin: A text that is a token of role ``admin`` itself. The secret follows from it, so that
            tokens outlive a restart of a server with the same one. None makes a secret that ends
            with this process.
        generation: Tokens of any other are refused.
    """

    def __init__(self, admin: str | None = None, generation: int = 0) -> None:
        self._secret = (
            hmac.digest(admin.encode(), b"agl: secret of a store", hashlib.sha256)
            if admin
            else secrets.token_bytes(32)
        )
        self.generation = generation
        self.admin = admin or self.issue("admin")

    def issue(
        self,
        role: Role,
        rollout_id: str = "",
        attempt_id: str = "",
        *,
        seconds: float | None = None,
    ) -> str:
        """Make a token.

        Args:
            role: What it allows.
            rollout_id: Of ``attempt`` and ``model``, which need both ids.
            attempt_id: The same.
            seconds: How long it is good for; None for as long as the store is there.

        Raises:
            ConfigError: No such role, or ids where none belong, or none where they do.
        """
        if role not in get_args(Role) or (role in _SCOPED) != bool(rollout_id and attempt_id):
            raise ConfigError(
                f"no token of role {role!r} with rollout_id={rollout_id!r} and "
                f"attempt_id={attempt_id!r}; roles are {', '.join(get_args(Role))}, and "
                f"{' and '.join(_SCOPED)} need both ids"
            )
        ids = _text(f"{rollout_id}\0{attempt_id}".encode()) if rollout_id else ""
        expires = 0 if seconds is None else int(time.time() + seconds) + 1
        said = f"{role}.{self.generation}.{expires}.{ids}"
        return f"{said}.{self._signature(said)}"

    def read(self, token: str) -> Grant | None:
        """What a token allows; None for one that is not ours, or no longer good."""
        if hmac.compare_digest(token.encode(errors="replace"), self.admin.encode()):
            return ADMIN
        said, _, signature = token.rpartition(".")
        expected = self._signature(said)
        if not hmac.compare_digest(signature.encode(errors="replace"), expected.encode()):
            return None
        role, generation, expires, ids = said.split(".")
        if int(generation) != self.generation or 0 < int(expires) < time.time():
            return None
        rollout_id, _, attempt_id = base64.urlsafe_b64decode(f"{ids}==").decode().partition("\0")
        return Grant.model_construct(
            role=cast(Role, role),
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            expires=int(expires),
        )

    def _signature(self, said: str) -> str:
        digest = hmac.digest(self._secret, said.encode(errors="replace"), hashlib.sha256)
        return _text(digest[:18])


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def with_token(address: str, token: str | None) -> str:
    """An address with a token in it, as HTTP clients take it: ``http://agl:TOKEN@HOST``."""
    scheme, _, rest = address.partition("://")
    return f"{scheme}://agl:{quote(token, safe='')}@{rest}" if token else address


def without_token(address: str) -> tuple[str, str | None]:
    """The reverse: an address, and the token that stood in it."""
    scheme, _, rest = address.partition("://")
    before, at, _ = rest.partition("/")[0].rpartition("@")
    if not at:
        return address, None
    return f"{scheme}://{rest[len(before) + 1 :]}", unquote(before.partition(":")[2]) or None


def token_in(authorization: bytes) -> str:
    """The token in a header ``Authorization``: after ``Bearer``, or as password of ``Basic``.

    Returns:
        An empty text where there is none.
    """
    scheme, _, given = authorization.decode("latin-1").partition(" ")
    if scheme.lower() == "bearer":
        return given
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(given, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return ""
    return ""
