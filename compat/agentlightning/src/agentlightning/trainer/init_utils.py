"""From specifications to components."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from agl.errors import ConfigError
from agl.plugins.build import import_attribute, plan_component
from agl.plugins.schema import schema_of

T = TypeVar("T")

OptionalDefaults = dict[str, Any]
"""Parameter name -> value, or what makes it."""


class WrongTypeError(ConfigError, TypeError):
    """A specification led to something of another type."""


def build_component(
    spec: Any,
    *,
    expected_type: type[T],
    spec_name: str,
    default_factory: Callable[[], T] | None = None,
    allow_none: bool = False,
    optional_defaults: OptionalDefaults | None = None,
    dict_requires_type: bool = True,
    dict_default_cls: type[T] | None = None,
    type_error_fmt: str | None = None,
    invalid_spec_error_fmt: str | None = None,
    registry: dict[str, str] | None = None,
) -> T | None:
    """Build a component from an instance, a class, a function, a path, or a dict with ``type``.

    Args:
        spec: The specification; None asks ``default_factory``.
        expected_type: What must come out.
        spec_name: What error messages begin with.
        default_factory: Makes the default.
        allow_none: Whether None may come out.
        optional_defaults: For a constructor that has these parameters.
        dict_requires_type: Whether a dict must have ``type``.
        dict_default_cls: The class of a dict without one.
        type_error_fmt: Message, with ``{type_name}`` and ``{expected_type}``.
        invalid_spec_error_fmt: Message, with ``{actual_type}`` and ``{expected_type}``.
        registry: Short name -> path.

    Raises:
        TypeError: Something else came out.
        ValueError: The specification is wrong.
    """
    if spec is None:
        if default_factory is not None:
            spec = default_factory
        elif allow_none:
            return None
        else:
            raise ConfigError(f"{spec_name} is missing")
    is_spec = isinstance(spec, (expected_type, type, str, Mapping)) or callable(spec)
    if not is_spec:
        message = invalid_spec_error_fmt or (
            "expected a {expected_type}, or how to make one; got a {actual_type}"
        )
        raise ConfigError(
            message.format(actual_type=type(spec), expected_type=expected_type.__name__)
        )
    made: Any = (
        spec
        if isinstance(spec, expected_type)
        else _instantiate(
            spec,
            spec_name=spec_name,
            optional_defaults=optional_defaults,
            dict_requires_type=dict_requires_type,
            dict_default_cls=dict_default_cls,
            registry=registry,
        )
    )
    if not isinstance(made, expected_type):
        message = type_error_fmt or "expected a {expected_type}, got a {type_name}"
        raise WrongTypeError(
            f"{spec_name}: "
            + message.format(type_name=type(made).__name__, expected_type=expected_type.__name__)
        )
    return made


def _instantiate(
    spec: Any,
    *,
    spec_name: str,
    optional_defaults: OptionalDefaults | None = None,
    dict_requires_type: bool = True,
    dict_default_cls: type[Any] | None = None,
    registry: dict[str, str] | None = None,
) -> Any:
    """Build what a class, function, path or dict says; see ``build_component``."""
    names = registry or {}
    kind, options = spec, dict[str, Any]()
    if isinstance(spec, Mapping):
        options = dict(spec)
        kind = options.pop("type", None) or (options.pop("name", None) if registry else None)
        if kind is None and dict_requires_type:
            raise ConfigError(f"{spec_name}: 'type' is missing")
        kind = kind or dict_default_cls
    if isinstance(kind, str):
        kind = import_attribute(names.get(kind, kind), spec_name)
    if not inspect.isclass(kind):
        return kind(**options) if callable(kind) else kind
    return plan_component(
        {**options, "type": kind},
        group=None,
        expected_type=kind,
        optional_defaults=_made(kind, options, optional_defaults or {}),
        where=spec_name,
    ).build()


def _made(kind: type[Any], given: Mapping[str, Any], defaults: OptionalDefaults) -> dict[str, Any]:
    wanted = {option.name for option in schema_of(kind).options} - given.keys()
    return {
        name: value() if callable(value) else value
        for name, value in defaults.items()
        if name in wanted
    }
