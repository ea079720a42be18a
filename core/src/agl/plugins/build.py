"""From what a user wrote to components: instances, classes, names, paths and dicts.

Planning finds, loads and checks; building calls the constructor. Between the two nothing has been
started, so a whole configuration can be refused first.
"""

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Container, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from agl.errors import AglError, ConfigError
from agl.plugins import registry
from agl.plugins.schema import key, schema_of, validate
from agl.utils.text import did_you_mean

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
        """The instance; an ``AglError`` says why there is none."""
        if _is_made(self.target, self.expected_type):
            return self.target
        label = str(self.component) if self.component else _name_of(self.target)
        with located(self.where, self.options, getattr(self.target, "__name__", "")):
            try:
                built: Any = self.target(**self.options)
            except AglError:
                raise
            except Exception as error:
                if isinstance(error, ModuleNotFoundError) and self.component:
                    raise registry.broken(self.component, error) from error
                cause = f"{type(error).__name__}: {error}"
                raise ConfigError(f"{label} cannot be built: {cause}") from error
            if not isinstance(built, self.expected_type):
                raise wrong_type(label, built, self.expected_type)
        return built


def build_component(spec: Given[T] | None, *, expected_type: type[T], **options: Any) -> T:
    """Build a component from any form in which one may be given.

    Args:
        spec: An instance (returned as it is), a class, a function without arguments, a registered
            name (``"apo"``), a path (``"module:attribute"`` or ``"package.module.Attribute"``), a
            dict of ``type`` (any of these) and options, or None. A dict without ``type`` holds
            options of the default.
        expected_type: What must come out.
        options: ``group`` is the entry point group in which names are looked up, as
            ``"agl.algorithms"``, or None; ``default`` is used for None, in any of these forms;
            ``optional_defaults`` holds options for a constructor that has them, unless ``spec``
            says otherwise; error messages begin with ``where``, as ``"agl.yaml: algorithm"``.

    Raises:
        ConfigError: An unknown or missing option, a value of the wrong type, a path that leads
            nowhere, or something that is not ``expected_type``.
        PluginError: A name that nobody offers, or a component that does not load.
    """
    return plan_component(spec, expected_type=expected_type, **options).build()


def plan_component(
    spec: Given[T] | None,
    *,
    group: str | None,
    expected_type: type[T],
    default: Given[T] | None = None,
    optional_defaults: Mapping[str, Any] | None = None,
    where: str = "",
) -> ComponentPlan[T]:
    """Find, load and check what ``build_component`` would build, and build nothing.

    Arguments and errors are those of ``build_component``; without a group there are no names.
    """
    options: dict[str, Any] = {}
    for given in (spec, default):
        if isinstance(given, Mapping):
            options = {**cast("Mapping[str, Any]", given), **options}
            given = options.pop("type", None)
        if given is not None:
            break
    with located(where):
        target, component = find_target(given, group)
        label = str(component) if component else _name_of(target)
        if _is_made(target, expected_type):
            if options:
                what = repr(given) if isinstance(given, str) else label
                raise ConfigError(f"{what} is made already; it takes no options here")
            return ComponentPlan(target, expected_type, where=where, component=component)
        if not (issubclass(target, expected_type) if inspect.isclass(target) else callable(target)):
            raise wrong_type(label, target, expected_type)
    takes = {option.name for option in schema_of(target).options}
    defaults = {n: value for n, value in (optional_defaults or {}).items() if n in takes}
    checked = validate(target, {**defaults, **options}, where)
    return ComponentPlan(target, expected_type, checked, where, component)


def build_hooks(given: object | Sequence[object] | None) -> list[object]:
    """What watches a run; names, classes, and dicts of ``type`` and options, are built."""
    is_one = isinstance(given, str) or not isinstance(given, Sequence)
    each: list[Any] = [given] if is_one else list(cast("Sequence[Any]", given))
    about: dict[str, Any] = {"group": registry.GROUPS["hook"], "expected_type": object}
    return [build_component(one, where="hooks", **about) for one in each if given is not None]


def import_attribute(path: str, where: str = "") -> Any:
    """Import ``module:attribute`` or ``package.module.attribute``, or raise a ``ConfigError``."""
    module_name, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    with located(where):
        if not module_name or not attribute:
            raise ConfigError(f"{path!r} is no path; write 'module:attribute'")
        value = _import_module(module_name)
        for part in attribute.split("."):
            if not hasattr(value, part):
                hint = did_you_mean(part, [n for n in dir(value) if not n.startswith("_")])
                raise ConfigError(f"{module_name!r} has no {part!r}, as {path!r} says.{hint}")
            value = getattr(value, part)
    return value


@contextmanager
def located(where: str, options: Container[str] = (), owner: str = "") -> Generator[None]:
    """Put the file and key in front of the message of any ``AglError`` inside.

    A message that begins with one of these ``options`` of ``owner`` goes on with the key.
    """
    try:
        yield
    except AglError as error:
        if not where:
            raise
        inner = str(error).removeprefix(f"{owner}: ")
        is_option = re.split(r"[.:[]", inner)[0] in options
        raise type(error)(key(where, inner) if is_option else f"{where}: {error}") from error


def find_target(spec: object, group: str | None) -> tuple[Any, registry.Component | None]:
    """What a name or path stands for, or the spec itself; and its entry point, if it has one."""
    names = registry.names_in(group) if group else []
    if spec is None:
        hint = f"installed: {', '.join(names) or 'none'}" if group else "write 'module:attribute'"
        raise ConfigError(f"'type' is missing; {hint}")
    if not isinstance(spec, str):
        return spec, None
    if group is None or (spec not in names and (":" in spec or "." in spec)):
        return import_attribute(spec), None
    component = registry.find(group, spec)
    return registry.load_component(component), component


def _import_module(name: str) -> Any:
    try:
        with registry.stdout_to_stderr():
            return importlib.import_module(name)
    except AglError:
        raise
    # A user's module may raise anything while it is imported, even SystemExit.
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{name}.".startswith(f"{missing}."):
            cause = f"{type(error).__name__}: {error}"
            raise ConfigError(f"importing {name!r} failed: {cause}") from error
        hint = did_you_mean(name, {module.name for module in pkgutil.iter_modules(sys.path[:2])})
        raise ConfigError(f"there is no module {missing!r}.{hint}") from None


def _is_made(target: object, expected_type: type) -> bool:
    return isinstance(target, expected_type) and not inspect.isclass(target)


def _name_of(target: Any) -> str:
    return getattr(target, "__qualname__", None) or type(target).__qualname__


def wrong_type(label: str, found: object, expected: type) -> ConfigError:
    """That a component is not of its kind."""
    kind = "the class" if inspect.isclass(found) else "a"
    name = _name_of(found if inspect.isclass(found) else type(found))
    article = "an" if expected.__name__[0] in "AEIOU" else "a"
    return ConfigError(f"{label}: expected {article} {expected.__name__}, got {kind} {name}")
