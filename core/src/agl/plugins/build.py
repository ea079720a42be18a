"""From what a user wrote to components: instances, classes, names, paths and dicts.

Planning finds, loads and checks; building calls the constructor. Between the two nothing has been
started, so a whole configuration can be refused first.
"""

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast, overload

from agl.errors import AglError, BrokenComponentError, ConfigError
from agl.plugins import registry
from agl.plugins.schema import schema_of, validate

T = TypeVar("T")
Given = T | type[T] | Callable[[], T] | str | Mapping[str, Any]
"""How a component is given: an instance, its class, what makes it, a name, or type and options."""


@dataclass(frozen=True)
class ComponentPlan(Generic[T]):
    """A component that was found, loaded and checked; nothing was built."""

    target: Any
    """The finished instance, or the class or function that builds it."""
    expected_type: type[T]
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """Checked and converted; what ``target`` is called with."""
    where: str = ""
    component: registry.Component | None = None
    """The entry point that it came from, if any."""

    def build(self) -> T:
        """The instance.

        Raises:
            ConfigError: The constructor refused its options, or returned something else.
            BrokenComponentError: It needs a module that is not installed.
        """
        if isinstance(self.target, self.expected_type) and not inspect.isclass(self.target):
            return self.target
        label = str(self.component) if self.component else _name_of(self.target)
        try:
            built: Any = self.target(**self.options)
        except AglError as error:
            raise located(self.where, error) from error
        except Exception as error:
            if isinstance(error, ModuleNotFoundError) and self.component is not None:
                try:
                    registry.raise_broken(self.component, error)
                except BrokenComponentError as broken:
                    raise located(self.where, broken) from error
            raise located(
                self.where,
                ConfigError(f"{label} cannot be built: {type(error).__name__}: {error}"),
            ) from error
        if not isinstance(built, self.expected_type):
            raise located(self.where, _wrong_type(label, built, self.expected_type))
        return built


@overload
def build_component(
    spec: type[T] | Callable[[], T] | str | Mapping[str, Any],
    *,
    group: str,
    expected_type: type[T],
    default: Given[T] | None = None,
    optional_defaults: Mapping[str, Any] | None = None,
    where: str = "",
) -> T: ...
@overload
def build_component(
    spec: Given[T] | None,
    *,
    group: str,
    expected_type: type[T],
    default: Given[T],
    optional_defaults: Mapping[str, Any] | None = None,
    where: str = "",
) -> T: ...
@overload
def build_component(
    spec: Given[T] | None,
    *,
    group: str,
    expected_type: type[T],
    default: None = None,
    optional_defaults: Mapping[str, Any] | None = None,
    where: str = "",
) -> T | None: ...
def build_component(
    spec: Given[T] | None,
    *,
    group: str,
    expected_type: type[T],
    default: Given[T] | None = None,
    optional_defaults: Mapping[str, Any] | None = None,
    where: str = "",
) -> T | None:
    """Build a component from any form in which one may be given.

    Args:
        spec: An instance (returned as it is), a class, a function without arguments, a registered
            name (``"apo"``), a path (``"module:attribute"`` or ``"package.module.Attribute"``), a
            dict of ``type`` (any of these) and options, or None. A dict without ``type`` holds
            options of the default.
        group: Entry point group in which names are looked up, as ``"agl.algorithms"``.
        expected_type: What must come out.
        default: Used for None, in any of these forms; with None too, None comes back.
        optional_defaults: Options for a constructor that has them, unless ``spec`` says otherwise.
        where: What error messages begin with, as ``"agl.yaml: algorithm"``.

    Returns:
        The component, or None when neither ``spec`` nor ``default`` is given.

    Raises:
        ConfigError: An unknown or missing option, a value of the wrong type, a path that leads
            nowhere, or something that is not ``expected_type``.
        PluginError: A name that nobody offers, or a component that does not load.
    """
    plan = plan_component(
        spec,
        group=group,
        expected_type=expected_type,
        default=default,
        optional_defaults=optional_defaults,
        where=where,
    )
    return plan.build() if plan else None


def plan_component(
    spec: Given[T] | None,
    *,
    group: str | None,
    expected_type: type[T],
    default: Given[T] | None = None,
    optional_defaults: Mapping[str, Any] | None = None,
    where: str = "",
) -> ComponentPlan[T] | None:
    """Find, load and check what ``build_component`` would build, and build nothing.

    Arguments and errors are those of ``build_component``; without a group there are no names.
    """
    options: dict[str, Any] = {}
    if isinstance(spec, Mapping):
        options = dict(cast("Mapping[str, Any]", spec))
        spec = options.pop("type", None)
    elif spec is None and default is None:
        return None
    if spec is None and isinstance(default, Mapping):
        options = {**cast("Mapping[str, Any]", default), **options}
        spec = options.pop("type", None)
    elif spec is None:
        spec = cast("Given[T] | None", default)
    if spec is None:
        names = sorted({c.name for c in registry.components(group)}) if group else []
        installed = ", ".join(names) or "none"
        raise located(where, ConfigError(f"'type' is missing; installed: {installed}"))
    target, component = _find(spec, group, where)
    label = str(component) if component else _name_of(target)
    if isinstance(target, expected_type):
        if options:
            raise located(where, ConfigError(f"{label} is made already; it takes no options here"))
        return ComponentPlan(target, expected_type, where=where, component=component)
    if (inspect.isclass(target) and not issubclass(target, expected_type)) or not callable(target):
        raise located(where, _wrong_type(label, target, expected_type))
    takes = {option.name for option in schema_of(target).options}
    for name, value in (optional_defaults or {}).items():
        if name in takes:
            options.setdefault(name, value)
    checked = validate(target, options, where)
    return ComponentPlan(target, expected_type, checked, where, component)


def check_credit(owner: str, credit: str | Mapping[str, Any] | None) -> None:
    """Refuse a credit rule that is not installed, or options that it does not take.

    Args:
        owner: The algorithm that was given it.
        credit: Name, or a dict of ``type`` and options; None leaves it to the adapter.

    Raises:
        ConfigError: Its options are wrong.
        PluginError: There is no such rule, or it does not load.
    """
    from agl.algorithm.adapter import CreditRule

    if credit is not None:
        plan_component(
            credit,
            group=registry.GROUPS["credit"],
            expected_type=CreditRule,
            default="final",
            where=f"{owner}: credit",
        )


def import_attribute(path: str, where: str = "") -> Any:
    """Import what a path names.

    Args:
        path: ``module:attribute`` or ``package.module.attribute``.
        where: What error messages begin with.

    Raises:
        ConfigError: There is no such module or attribute, or importing the module fails.
    """
    module_name, colon, attribute = path.partition(":")
    if not colon:
        module_name, _, attribute = path.rpartition(".")
    if not module_name or not attribute:
        raise located(where, ConfigError(f"{path!r} is no path; write 'module:attribute'"))
    value: Any = _import_module(module_name, where)
    for part in attribute.split("."):
        try:
            value = getattr(value, part)
        except AglError as error:
            raise located(where, error) from error
        except AttributeError:
            hint = registry.did_you_mean(part, [n for n in dir(value) if not n.startswith("_")])
            raise located(
                where, ConfigError(f"{module_name!r} has no {part!r}, as {path!r} says.{hint}")
            ) from None
    return value


def located(where: str, error: AglError) -> AglError:
    """The same error with the file and key in front."""
    return type(error)(f"{where}: {error}") if where else error


def _find(spec: object, group: str | None, where: str) -> tuple[Any, registry.Component | None]:
    if not isinstance(spec, str):
        return spec, None
    if group is None:
        return import_attribute(spec, where), None
    registered = any(c.name == spec for c in registry.components(group))
    if not registered and (":" in spec or "." in spec):
        return import_attribute(spec, where), None
    try:
        component = registry.find(group, spec)
        return registry.load_component(component), component
    except AglError as error:
        raise located(where, error) from error


def _import_module(name: str, where: str) -> Any:
    try:
        return importlib.import_module(name)
    except AglError as error:
        raise located(where, error) from error
    # A user's module may raise anything while it is imported, even SystemExit.
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and _is_part(error.name, name):
            parent, _, leaf = name.rpartition(".")
            if hasattr(sys.modules.get(parent), leaf):  # as ``agl.adapter`` is one of ``agl``
                return getattr(sys.modules[parent], leaf)
            near = {module.name for module in pkgutil.iter_modules(sys.path[:2])}
            hint = registry.did_you_mean(name, near)
            raise located(where, ConfigError(f"there is no module {error.name!r}.{hint}")) from None
        raise located(
            where, ConfigError(f"importing {name!r} failed: {type(error).__name__}: {error}")
        ) from error


def _is_part(missing: str | None, name: str) -> bool:
    return missing is not None and (name == missing or name.startswith(f"{missing}."))


def _name_of(target: Any) -> str:
    return getattr(target, "__qualname__", None) or type(target).__qualname__


def _wrong_type(label: str, found: object, expected: type) -> ConfigError:
    kind = "the class" if inspect.isclass(found) else "a"
    name = _name_of(found) if inspect.isclass(found) else type(found).__qualname__
    return ConfigError(f"{label}: expected a {expected.__name__}, got {kind} {name}")
