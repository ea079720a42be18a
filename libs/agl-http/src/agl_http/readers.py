"""What a reader sees: everything but keys, what tasks keep private, and what graders say."""

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from agl.types import LLM, PaginatedResult, ResourcesUpdate, Rollout
from agl.types.records import Attempt, AttemptedRollout, public_failure, without_private
from agl.utils.secrets import HIDDEN, hide, is_secret

T = TypeVar("T")


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
            name: type(resource).model_validate(_without_keys(resource.model_dump()))
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


def _without_keys(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        return {
            key: _without_keys(one, name if is_secret(name) else key) for key, one in fields.items()
        }
    if isinstance(value, list):
        return [_without_keys(one, name) for one in cast(list[Any], value)]
    if value is not None and not isinstance(value, bool) and is_secret(name):
        return HIDDEN
    return hide(value) if isinstance(value, str) else value
