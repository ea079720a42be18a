"""What a reader sees: everything but what tasks keep private, and keys."""

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from agl.types import LLM, PaginatedResult, ResourcesUpdate, Rollout
from agl.types.records import without_private

T = TypeVar("T")

HIDDEN = "***"


def visible(answer: T) -> T:
    """The answer of an operation, without what readers do not see."""
    return cast(T, _visible(answer))


def _visible(answer: Any) -> Any:
    if isinstance(answer, Rollout):
        return answer.changed(input=without_private(answer.input))
    if isinstance(answer, ResourcesUpdate):
        hidden = {
            name: resource.model_copy(update={"api_key": HIDDEN})
            for name, resource in answer.resources.items()
            if isinstance(resource, LLM) and resource.api_key is not None
        }
        return answer.model_copy(update={"resources": {**answer.resources, **hidden}})
    if isinstance(answer, PaginatedResult):
        page = cast(PaginatedResult[Any], answer)
        return page.model_copy(update={"items": [_visible(one) for one in page.items]})
    if isinstance(answer, list | tuple):
        return [_visible(one) for one in cast(Sequence[Any], answer)]
    return answer
