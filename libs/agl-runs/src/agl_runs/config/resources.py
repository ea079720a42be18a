"""Resources as a file has them."""

from typing import Any, get_args

from agl.errors import ConfigError
from agl.plugins.schema import key, validate
from agl.types import NamedResources, ResourceUnion
from agl.utils.text import did_you_mean


def resources_of(specs: dict[str, dict[str, Any]] | None, where: str) -> NamedResources | None:
    """Resources by name, each given as ``type`` and its fields; None of None.

    Raises:
        ConfigError: One has no known type, or a wrong field.
    """
    if specs is None:
        return None
    members = get_args(get_args(ResourceUnion)[0])
    kinds = {model.model_fields["resource_type"].default: model for model in members}
    resources: dict[str, Any] = {}
    for name, spec in specs.items():
        at, options = key(where, name), dict(spec)
        kind = options.pop("type", None) or options.pop("resource_type", None)
        if kind not in kinds:
            hint = did_you_mean(str(kind), kinds)
            raise ConfigError(
                f"{at}.type: {'missing' if kind is None else f'unknown resource {kind!r}'}; "
                f"one of {', '.join(kinds)}.{hint}"
            )
        model: Any = kinds[kind]
        resources[name] = model(**validate(model, options, at))
    return resources
