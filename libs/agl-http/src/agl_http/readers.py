"""What a reader sees: everything but keys, what tasks keep private, and what graders say."""

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from agl.types import LLM, PaginatedResult, ResourcesUpdate, Rollout
from agl.types.records import Attempt, AttemptedRollout, public_failure, without_private
from agl.utils.secrets import HIDDEN, hide

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
