"""What each role may do at a store server: one table, by the names of the operations."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from agl.access.tokens import Grant, Role
from agl.errors import NotAllowedError

_LOOKS: Final = frozenset(
    {
        "statistics",
        "query_rollouts",
        "get_rollout_by_id",
        "wait_for_rollouts",
        "query_attempts",
        "get_latest_attempt",
        "query_spans",
        "query_ledger_parts",
        "query_resources",
        "get_latest_resources",
        "get_resources_by_id",
        "query_workers",
        "get_worker_by_id",
    }
)
_WRITES_SPANS: Final = frozenset({"add_many_spans", "get_many_span_sequence_ids"})
_OF_WHAT_WAS_CLAIMED: Final = frozenset(
    {
        *_WRITES_SPANS,
        "turn",
        "update_attempt",
        "update_rollout",
        "get_rollout_by_id",
        "query_attempts",
        "get_latest_attempt",
        "query_spans",
    }
)
"""Operations on a rollout that a runner may do to those that it has claimed."""
ALLOWED: Final[Mapping[Role, frozenset[str]]] = {
    "runner": _OF_WHAT_WAS_CLAIMED
    | {
        "dequeue_many_rollouts",
        "query_rollouts",
        "query_resources",
        "get_latest_resources",
        "get_resources_by_id",
        "update_worker",
        "get_worker_by_id",
    },
    "attempt": _WRITES_SPANS,
    "model": frozenset(),
    "reader": _LOOKS,
}
"""Role -> operations; an admin may do all."""

GIVES_BACK: Final = {"status": "requeuing"}
"""The only change that a runner may make to a rollout: put it back."""


def check(
    grant: Grant,
    claims: Collection[Grant],
    operation: str,
    arguments: Mapping[str, Any],
    attempts: Collection[tuple[str, str]] = (),
) -> None:
    """Refuse what the token of a request does not allow.

    Args:
        grant: Of the request.
        claims: Of tokens of attempts that stand beside it: what a runner has claimed.
        operation: What is asked for.
        arguments: With what; ``rollout_id`` and ``attempt_id`` say to which record.
        attempts: Rollout and attempt ids of what is written, where the arguments do not say.

    Raises:
        NotAllowedError: The role may not do that, or not to this record.
    """
    role = grant.role
    if role == "admin":
        return
    if operation not in ALLOWED[role]:
        raise NotAllowedError(
            f"a token of role {role!r} may not {operation}; it may "
            f"{', '.join(sorted(ALLOWED[role])) or 'call the gateway'}. Use the address or the "
            "token of an admin, which `agl store` prints and AGL_SERVER_TOKEN sets"
        )
    if role == "reader" or operation not in (*_OF_WHAT_WAS_CLAIMED, "query_rollouts"):
        return
    own = {(one.rollout_id, one.attempt_id) for one in claims if one.role == "attempt"}
    if role == "attempt":
        own = {(grant.rollout_id, grant.attempt_id)}
    if operation == "query_rollouts":
        attempts = [(rollout_id, "latest") for rollout_id in arguments.get("rollout_id_in") or ()]
        if not attempts or arguments.get("filter_logic", "and") != "and":
            raise NotAllowedError(
                f"a token of role {role!r} may query the rollouts that it claimed, by "
                "rollout_id_in, and no others"
            )
    if "rollout_id" in arguments:
        attempts = [(arguments["rollout_id"], arguments.get("attempt_id") or "latest")]
    rollouts = {rollout_id for rollout_id, _ in own}
    changes = operation == "update_attempt"
    for rollout_id, attempt_id in attempts:
        any_attempt = attempt_id == "latest" and not changes and operation not in _WRITES_SPANS
        if rollout_id not in rollouts if any_attempt else (rollout_id, attempt_id) not in own:
            raise NotAllowedError(
                f"the token of role {role!r} does not cover attempt {attempt_id!r} of rollout "
                f"{rollout_id!r}: that was claimed by another, or is not the attempt that was "
                "claimed. A runner shows the token of each attempt that it got with the claim"
            )
    if operation == "update_rollout":
        ids = ("rollout_id", "attempt_id")
        given = {name: value for name, value in arguments.items() if name not in ids}
        if given != GIVES_BACK:
            raise NotAllowedError(
                f"a token of role {role!r} may put a rollout back into the queue and change "
                f"nothing else of it; got {', '.join(sorted(given)) or 'no change'}"
            )
