"""Tokens that a store makes, each for a role and a scope, with a secret that never leaves it."""

import binascii
import hmac
import secrets
import time
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache
from hashlib import blake2b
from typing import Literal, NamedTuple, Protocol, cast, get_args, runtime_checkable
from urllib.parse import quote, unquote
from weakref import WeakKeyDictionary

from agl.errors import ConfigError, NotSupportedError
from agl.store.base import LightningStore
from agl.store.forwarding import ForwardingStore

Role = Literal["admin", "runner", "attempt", "model", "reader"]
"""``admin``: everything, as an algorithm needs. ``runner``: claim, and work on what it claimed.
``attempt``: add spans to one open attempt. ``model``: call the gateway for one attempt.
``reader``: look, without what tasks keep private."""

_ROLES = get_args(Role)
MAX_KNOWN = 10_000
"""Tokens that are not looked into again."""
SHORT = 16
"""Characters; who has a token that follows from fewer can try them all, and nobody notices."""
_SCOPED = ("attempt", "model")


class Grant(NamedTuple):
    """What a token allows."""

    role: Role
    rollout_id: str = ""
    """Of ``attempt`` and ``model``: whose."""
    attempt_id: str = ""
    expires: int = 0
    """Unix seconds; 0 for never."""


ADMIN = Grant("admin")


class Tokens:
    """Makes tokens, and knows its own again.

    A token is ``ROLE.EXPIRES.IDS.SIGNATURE``; the signature is keyed BLAKE2b (128 bits) over what
    stands before it. That of role ``model`` has the hash of the attempt's instead: who claimed an
    attempt makes it (``model_token``), and who has it cannot make the attempt's.

    Args:
        admin: A text that is a token of role ``admin`` itself. The secret follows from it, so that
            tokens outlive a restart of a server with the same one. None makes a secret that ends
            with this process.

    Raises:
        ConfigError: See ``check_admin``.
    """

    def __init__(self, admin: str | None = None) -> None:
        if admin is not None:
            check_admin(admin)
        self._secret = (
            blake2b(admin.encode(), person=b"agl store", digest_size=32).digest()
            if admin
            else secrets.token_bytes(32)
        )
        # Python hashes texts with a key of the process's own, so that how long it takes to find one
        # says nothing of those that are nearly the same.
        self._checked = lru_cache(MAX_KNOWN)(self._check)
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
        if role not in _ROLES or (role in _SCOPED) != bool(rollout_id and attempt_id):
            raise ConfigError(
                f"no token of role {role!r} with rollout_id={rollout_id!r} and "
                f"attempt_id={attempt_id!r}; roles are {', '.join(_ROLES)}, and "
                f"{' and '.join(_SCOPED)} need both ids"
            )
        ids = urlsafe_b64encode(f"{rollout_id}\0{attempt_id}".encode()) if rollout_id else b""
        expires = 0 if seconds is None else int(time.time() + seconds) + 1
        said = f"{expires}.{ids.decode().rstrip('=')}"
        if role == "model":
            return model_token(self._signed(f"attempt.{said}"))
        return self._signed(f"{role}.{said}")

    def read(self, token: str) -> Grant | None:
        """What a token allows; None for one that is not ours, or no longer good."""
        grant = self._checked(token)
        return None if grant is None or 0 < grant.expires < time.time() else grant

    def read_header(self, authorization: bytes) -> Grant | None:
        """What the token in a header ``Authorization`` allows."""
        return self.read(token_in(authorization))

    def _check(self, token: str) -> Grant | None:
        given = token.encode(errors="replace")
        if hmac.compare_digest(given, self.admin.encode()):
            return ADMIN
        said, _, _ = token.rpartition(".")
        role, _, rest = said.partition(".")
        is_model = role == "model"
        expected = self._signed(f"attempt.{rest}" if is_model else said)
        if is_model:
            expected = model_token(expected)
        if not hmac.compare_digest(given, expected.encode(errors="replace")):
            return None
        expires, ids = rest.split(".")
        rollout_id, _, attempt_id = urlsafe_b64decode(f"{ids}==").decode().partition("\0")
        return Grant(cast(Role, role), rollout_id, attempt_id, int(expires))

    def _signed(self, said: str) -> str:
        text = said.encode(errors="replace")
        return f"{said}.{blake2b(text, key=self._secret, digest_size=16).hexdigest()}"


def check_admin(token: str) -> None:
    """Refuse what is no token of an admin that a user may choose.

    Raises:
        ConfigError: It has characters that no header takes, or so few that agents could guess them
            by the tokens of their attempts.
    """
    if not (token.isascii() and token.isprintable()):
        raise ConfigError(
            "the token of a store server is printable ASCII; the one that was given "
            "(AGL_SERVER_TOKEN, or token=) has other characters"
        )
    if len(token) < SHORT:
        raise ConfigError(
            f"the token of a store server (AGL_SERVER_TOKEN, or token=) has {len(token)} "
            f"characters, and needs {SHORT} or more: the tokens of attempts follow from it, so "
            "agents could guess it. Make one with: "
            'python -c "import secrets; print(secrets.token_urlsafe())"'
        )


def model_token(attempt_token: str) -> str:
    """The token of role ``model`` that belongs to one of role ``attempt``."""
    said, _, signature = attempt_token.rpartition(".")
    digest = blake2b(signature.encode(), person=b"agl model", digest_size=16).hexdigest()
    return f"model.{said.partition('.')[2]}.{digest}"


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
    """The token in a header ``Authorization``: after ``Bearer``, or as password of ``Basic``."""
    scheme, _, given = authorization.decode("latin-1").partition(" ")
    if scheme.lower() == "bearer":
        return given
    if scheme.lower() == "basic":
        try:
            return b64decode(given, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return ""
    return ""


_made: WeakKeyDictionary[LightningStore, Tokens] = WeakKeyDictionary()
"""The tokens of stores of this process."""


def tokens_of(store: LightningStore) -> Tokens:
    """What makes the tokens of a store, in the process that owns it.

    Made when first asked for: processes that were forked before do not have the secret.

    Raises:
        NotSupportedError: The store is elsewhere; ``issue_token`` asks there.
    """
    owner = _owner_of(store)
    if isinstance(owner, IssuesTokens):
        raise NotSupportedError(
            "the store is in another process, which makes its tokens; use issue_token(store, ...)"
        )
    return _made.get(owner) or _made.setdefault(owner, Tokens())


def set_tokens(store: LightningStore, tokens: Tokens) -> None:
    """Make ``tokens_of`` return these."""
    _made[_owner_of(store)] = tokens


async def issue_token(
    store: LightningStore,
    role: Role,
    rollout_id: str = "",
    attempt_id: str = "",
    seconds: float | None = None,
) -> str:
    """Make a token of a store, wherever that is; see ``Tokens.issue``."""
    owner = _owner_of(store)
    if isinstance(owner, IssuesTokens):
        return await owner.issue_token(role, rollout_id, attempt_id, seconds)
    return tokens_of(owner).issue(role, rollout_id, attempt_id, seconds=seconds)


async def read_token(store: LightningStore, token: str) -> Grant | None:
    """What a token of a store allows, wherever that is; None for any other token."""
    owner = _owner_of(store)
    if isinstance(owner, IssuesTokens):
        return await owner.read_token(token)
    return tokens_of(owner).read(token)


@runtime_checkable
class IssuesTokens(Protocol):
    """A store in another process, which makes the tokens."""

    async def issue_token(
        self, role: Role, rollout_id: str = "", attempt_id: str = "", seconds: float | None = None
    ) -> str: ...

    async def read_token(self, token: str) -> Grant | None: ...


def _owner_of(store: LightningStore) -> LightningStore:
    while isinstance(store, ForwardingStore):
        store = store.target
    return store
