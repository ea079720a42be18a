"""Parameters that a call gets whatever the agent says, by the mode of its rollout."""

from collections.abc import Mapping
from typing import Any, get_args

import msgspec
from msgspec import Raw

from agl.errors import ConfigError
from agl.types import RolloutMode
from agl_gateway.dialect import Exchange, dumps

ALL = "all"
MODES = (ALL, *get_args(RolloutMode))
NOT_FORCED = ("model", "messages", "prompt", "stream", "stream_options", "n")
"""What decides what kind of call it is, and not how its answer is sampled."""

ForcedParameters = Mapping[str, Mapping[str, Any]]
"""Mode, or ``all``, -> field of the request -> its value."""


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
    values = {**parameters.get(ALL, {}), **parameters.get(mode or ALL, {})}
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


def check_forced_parameters(parameters: object, where: str) -> ForcedParameters:
    """Forced parameters out of a model list.

    Raises:
        ConfigError: They are none.
    """
    if parameters is None:
        return {}
    if not isinstance(parameters, Mapping):
        raise ConfigError(
            f"{where}: forced_parameters is {parameters!r}; expected for example "
            "{'train': {'temperature': 1.0}, 'val': {'temperature': 0.0}}"
        )
    for mode, values in parameters.items():
        if mode not in MODES:
            raise ConfigError(
                f"{where}: forced_parameters: unknown mode {mode!r}; expected {', '.join(MODES)}"
            )
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"{where}: forced_parameters of {mode!r} are {values!r}; expected fields of a "
                "request and their values"
            )
        for name in values:
            if name in NOT_FORCED:
                raise ConfigError(
                    f"{where}: forced_parameters of {mode!r}: {name!r} cannot be forced; only "
                    "parameters of sampling can"
                )
    return parameters
