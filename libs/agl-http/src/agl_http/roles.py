"""What each role may do at a store server, in one table of operations, and what a reader sees."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

from agl.errors import NotAllowedError
from agl.types import LLM, PaginatedResult, ResourcesUpdate, Rollout
from agl.types.records import Attempt, AttemptedRollout, public_failure, without_private
from agl.utils.secrets import HIDDEN, hide
from agl_http.tokens import Grant, Role

T = TypeVar("T")


class Rule(NamedTuple):
    """What a token must be for, and what may be asked with it."""

    own: Literal["attempt", "rollout", None]
    """Each attempt that is asked for, or an attempt of its rollout; None for no record at all."""
    only: str = ""
    """How it may be asked; for messages."""
    holds: Callable[[Mapping[str, Any]], bool] = lambda arguments: True
    """Whether the arguments ask so."""


def _names_its_rollouts(arguments: Mapping[str, Any]) -> bool:
    return bool(arguments.get("rollout_id_in")) and arguments.get("filter_logic", "and") == "and"


def _gives_back(arguments: Mapping[str, Any]) -> bool:
    changes = {name: arguments[name] for name in arguments if name not in _IDS}
    return changes == {"status": "requeuing"}


_IDS: Final = ("rollout_id", "attempt_id")
_ANY, _ROLLOUT, _ATTEMPT = Rule(None), Rule("rollout"), Rule("attempt")
_WRITES_SPANS: Final = {"add_many_spans": _ATTEMPT, "get_many_span_sequence_ids": _ATTEMPT}
_LOOKS: Final = (
    *("statistics", "query_rollouts", "get_rollout_by_id", "wait_for_rollouts"),
    *("query_attempts", "get_latest_attempt", "query_spans", "query_documents"),
    *("query_resources", "get_latest_resources", "get_resources_by_id", "query_workers"),
    "get_worker_by_id",
)
ALLOWED: Final[Mapping[Role, Mapping[str, Rule]]] = {
    "runner": {
        "dequeue_many_rollouts": _ANY,
        "turn": _ATTEMPT,
        **_WRITES_SPANS,
        "update_attempt": _ATTEMPT,
        "update_rollout": Rule(
            "attempt", "to put it back: status='requeuing', and no other change", _gives_back
        ),
        "query_rollouts": Rule(
            "rollout", "by rollout_id_in, and not with filter_logic='or'", _names_its_rollouts
        ),
        "get_rollout_by_id": _ROLLOUT,
        "query_attempts": _ROLLOUT,
        "get_latest_attempt": _ROLLOUT,
        "query_spans": _ROLLOUT,
        "query_resources": _ANY,
        "get_latest_resources": _ANY,
        "get_resources_by_id": _ANY,
        "update_worker": _ANY,
        "get_worker_by_id": _ANY,
    },
    "attempt": _WRITES_SPANS,
    "model": {},
    "reader": dict.fromkeys(_LOOKS, _ANY),
}
"""Role -> operation -> how; an admin may do all."""


def check(
    grant: Grant,
    claims: Collection[Grant],
    operation: str,
    arguments: Mapping[str, Any],
    attempts: Collection[tuple[str, str]] = (),
) -> None:
    """Refuse what the token of a request does not allow.

    ``claims`` are of the tokens of attempts beside it: what a runner has claimed. ``attempts`` has
    the ids of what is written, if the arguments ``rollout_id``, ``attempt_id`` and
    ``rollout_id_in`` do not say of which records.

    Raises:
        NotAllowedError: The role may not do that, not so, or not to this record.
    """
    role = grant.role
    if role == "admin":
        return
    rule = ALLOWED[role].get(operation)
    if rule is None:
        others = ", ".join([*(other for other in ALLOWED if operation in ALLOWED[other]), "admin"])
        raise NotAllowedError(
            f"a token of role {role!r} may not {operation}, which is for {others}; it may "
            f"{', '.join(ALLOWED[role]) or 'call the gateway'}"
        )
    if rule.own is None:
        return
    if not rule.holds(arguments):
        raise NotAllowedError(f"a token of role {role!r} may {operation} only {rule.only}")
    if "rollout_id" in arguments:
        attempts = [(arguments["rollout_id"], arguments.get("attempt_id") or "")]
    elif "rollout_id_in" in arguments:
        attempts = [(rollout_id, "") for rollout_id in arguments["rollout_id_in"]]
    if role == "attempt":
        claims = [grant]
    own = {(one.rollout_id, one.attempt_id) for one in claims if one.role == "attempt"}
    rollouts = {rollout_id for rollout_id, _ in own}
    for one in attempts:
        if one not in own if rule.own == "attempt" else one[0] not in rollouts:
            raise NotAllowedError(_not_own(role, operation, rule, one))


def _not_own(role: Role, operation: str, rule: Rule, asked: tuple[str, str]) -> str:
    attempt = f"attempt {asked[1]!r} of " if rule.own == "attempt" else ""
    why = "it is for one attempt, and that is another"
    if role == "runner":
        why = (
            "another has claimed it, or the token that came with the claim is not in the header "
            "AGL-Attempts"
        )
    return (
        f"a token of role {role!r} may not {operation} {attempt}rollout {asked[0]!r}: {why}. "
        "An admin may"
    )


# --- what a reader sees: everything but keys, what tasks keep private, and what graders say


def visible(answer: T) -> T:
    """The answer of an operation, without what readers do not see."""
    return cast(T, _visible(answer))


def _visible(answer: Any) -> Any:
    if isinstance(answer, Rollout):
        seen: dict[str, Any] = {"input": without_private(answer.input)}
        if isinstance(answer, AttemptedRollout):
            seen["attempt"] = _visible(answer.attempt)
        # Most have nothing to hide, and a page over a store asks for thousands.
        is_all = all(getattr(answer, name) is value for name, value in seen.items())
        return answer if is_all else answer.changed(**seen)
    if isinstance(answer, Attempt):
        error = public_failure(answer.error)
        return answer if error is answer.error else answer.changed(error=error)
    if isinstance(answer, ResourcesUpdate):
        hidden = {
            name: resource.model_copy(update=_without_keys(resource))
            for name, resource in answer.resources.items()
            if isinstance(resource, LLM)
        }
        return answer.model_copy(update={"resources": {**answer.resources, **hidden}})
    if isinstance(answer, PaginatedResult):
        page = cast(PaginatedResult[Any], answer)
        return page.model_copy(update={"items": [_visible(one) for one in page.items]})
    if isinstance(answer, list | tuple):
        return [_visible(one) for one in cast(Sequence[Any], answer)]
    return answer


def _without_keys(llm: LLM) -> dict[str, Any]:
    """The fields of a model in which keys may stand: of sampling parameters, numbers stay.

    Headers and bodies of providers hold keys under any name.
    """
    # Who reads an attribute ``endpoint`` is told to ask for the address of an attempt.
    endpoint = llm.model_dump(include={"endpoint"})["endpoint"]
    return {
        "endpoint": hide(endpoint),
        "api_key": llm.api_key and HIDDEN,
        "sampling_parameters": _without_texts(llm.sampling_parameters),
    }


def _without_texts(value: Any) -> Any:
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        return {name: _without_texts(one) for name, one in fields.items()}
    if isinstance(value, list):
        return [_without_texts(one) for one in cast(list[Any], value)]
    return HIDDEN if isinstance(value, str) else value
