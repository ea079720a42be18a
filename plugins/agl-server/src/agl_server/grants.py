"""What the token of a request allows, and the tokens in answers."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from pydantic import TypeAdapter

from agl.errors import NotAllowedError
from agl.store.base import AttemptEnd, LightningStore
from agl.store.packed_span import AnySpan, PackedSpan
from agl.types import AttemptedRollout
from agl_http.layers import ATTEMPTS, GRANT, RECEIVED, header
from agl_http.roles import check
from agl_http.tokens import Grant, Tokens

_ATTEMPTS = RECEIVED[ATTEMPTS]
_many_attempted = TypeAdapter(list[AttemptedRollout])
_attempted = TypeAdapter(AttemptedRollout)


class Grants:
    """Looks at what ``Authenticated`` noted of each request.

    Args:
        store: What is served.
        tokens: Make the tokens of what is claimed; None where nobody needs any.
    """

    def __init__(self, store: LightningStore, tokens: Tokens | None) -> None:
        self._store, self._tokens = store, tokens

    async def check(self, request: Request, operation: str, arguments: Mapping[str, Any]) -> None:
        """Refuse what the request's token does not allow; see ``agl_http.roles.check``."""
        grant: Grant = request.scope[GRANT]
        if grant.role == "admin":
            return
        if operation == "update_rollout":  # for whoever claimed it last, and for nobody before
            latest = await self._store.get_latest_attempt(arguments["rollout_id"])
            arguments = {**arguments, "attempt_id": latest.attempt_id if latest else ""}
        check(grant, self._claims(request), operation, arguments)

    def _claims(self, request: Request) -> list[Grant]:
        shown = header(request.scope, _ATTEMPTS).decode("latin-1")
        if self._tokens is None or not shown:
            return []
        return [one for token in shown.split(",") if (one := self._tokens.read(token.strip()))]

    def key(self, request: Request, key: str | None) -> str | None:
        """The key of a claim, which with another token is another one."""
        grant: Grant = request.scope[GRANT]
        own = grant.role == "admin" or key is None
        return key if own else f"{grant.role}.{grant.expires}.{key}"

    def is_reader(self, request: Request) -> bool:
        """Whether the answer goes to one who only looks."""
        return request.scope[GRANT].role == "reader"

    def written(
        self,
        request: Request,
        spans: Sequence[AnySpan],
        operation: str = "add_many_spans",
        finish: AttemptEnd | None = None,
    ) -> Sequence[AnySpan]:
        """The spans, each with its writer as the request's token says.

        Raises:
            NotAllowedError: It does not allow to write them, or to end ``finish`` beside that.
        """
        role = request.scope[GRANT].role
        if role == "admin":
            return spans
        attempts = {(span.rollout_id, span.attempt_id) for span in spans}
        if finish is not None:
            attempts.add((finish.rollout_id, finish.attempt_id))
        check(request.scope[GRANT], self._claims(request), operation, {}, attempts)
        is_agents = {span.writer for span in spans} <= {"agent"}  # nearly always
        return spans if is_agents else [_signed(span, role) for span in spans]

    def claims_json(self, claimed: Sequence[AttemptedRollout]) -> bytes:
        """What was claimed, each with the token of its attempt; see ``wire.Claimed``."""
        if self._tokens is None:
            return _many_attempted.dump_json(list(claimed))
        found: list[bytes] = []
        for one in claimed:
            token = self._tokens.issue("attempt", one.rollout_id, one.attempt.attempt_id)
            # Validated records are not validated again for one more field.
            found.append(
                b'%s,"span_token":"%s"}' % (_attempted.dump_json(one)[:-1], token.encode())
            )
        return b"[%s]" % b",".join(found)


def _signed(span: AnySpan, role: str) -> AnySpan:
    """The span as one of this role may write it: a runner for itself or its agent.

    Raises:
        NotAllowedError: It says that another wrote it.
    """
    if span.writer == "agent" or (span.writer, role) == ("runner", "runner"):
        return span
    if span.writer is None or role == "attempt":
        if isinstance(span, PackedSpan):
            return span.with_field('"writer":"agent"')._replace(writer="agent")
        return span.changed(writer="agent")
    raise NotAllowedError(
        f"span {span.name!r} of attempt {span.attempt_id!r}: a token of role {role!r} may not "
        f"write as {span.writer!r}; leave 'writer' out"
    )
