"""Parameters that a call gets whatever the agent says, by the mode of its rollout."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Raw
from pydantic import AfterValidator

from agl_gateway.dialect import Exchange, dumps

ALL = "all"
NOT_FORCED = ("model", "messages", "prompt", "stream", "stream_options", "n")
"""What decides what kind of call it is, and not how its answer is sampled."""


def _sampling(name: str) -> str:
    if name in NOT_FORCED:
        raise ValueError(f"{name!r} cannot be forced; only parameters of sampling can")
    return name


ForcedParameters = dict[
    Literal["all", "train", "val", "test"], dict[Annotated[str, AfterValidator(_sampling)], Any]
]
"""Mode of the rollout, or ``all``, -> field of the request -> its value."""


NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_k": (0, -1),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "typical_p": (1,),
    "best_of": (1,),
}
"""Values by which an agent asks for nothing; of the others: null, 0, false and what is empty."""


def force_parameters(
    exchange: Exchange, parameters: ForcedParameters, mode: str | None
) -> dict[str, Any]:
    """Set the fields of a call that are forced in this mode; the record has them too.

    Returns:
        What the agent had asked for instead, by field.
    """
    fields = exchange.fields
    forced: dict[str, Any] = {**parameters}
    values = {**forced.get(ALL, {}), **forced.get(mode or ALL, {})}
    if "max_tokens" in values and "max_completion_tokens" in fields:
        # Two names of one limit; servers refuse both at once.
        fields["max_tokens"] = fields.pop("max_completion_tokens")
    asked: dict[str, Any] = {}
    for name, value in values.items():
        if name in fields:
            wish = msgspec.json.decode(fields.pop(name))
            if wish is not None and wish != value and (value is not None or _changes(name, wish)):
                asked[name] = wish
        if value is not None:
            fields[name] = Raw(dumps(value))
    exchange.request = dumps(fields)
    return asked


def limit_tokens(exchange: Exchange, max_tokens: int) -> bool:
    """Set the limit of an answer that has none; whether it had none."""
    fields = exchange.fields
    for name in ("max_tokens", "max_completion_tokens"):
        if bytes(fields.get(name, b"null")) != b"null":
            return False
        fields.pop(name, None)
    fields["max_tokens"] = Raw(dumps(max_tokens))
    exchange.request = dumps(fields)
    return True


def _changes(name: str, wish: Any) -> bool:
    return wish not in NEUTRAL[name] if name in NEUTRAL else bool(wish)
