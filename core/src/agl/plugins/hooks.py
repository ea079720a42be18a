"""Calling hooks: every implementation gets what it names, and none can break the run.

The specs are in ``agl.plugins.hookspecs``. Implementations come from installed hook plugins
(entry point group ``agl.plugins``) and from objects given to a trainer or a runner.
"""

import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

from agl.env import LightningEnvVar, resolve_bool_env_var
from agl.errors import BrokenComponentError, ConfigError, PluginError
from agl.plugins import hookspecs, registry

if TYPE_CHECKING:
    from agl.agent.base import LitAgent, Runner
    from agl.tracer.base import Tracer
    from agl.types import Rollout, Span

logger = logging.getLogger(__name__)


class Hook:
    """Base of objects that watch a run: override any of the four, with the arguments you need.

    Give instances to ``Trainer(hooks=[...])`` or ``run_context(hooks=[...])``. A method may be a
    coroutine function or a plain one, and may leave out arguments. What it raises is logged and
    counted; the run goes on.
    """

    async def on_rollout_start(
        self, *, agent: "LitAgent[Any]", runner: "Runner[Any]", rollout: "Rollout"
    ) -> None:
        """A runner has claimed a rollout and is about to run it."""

    async def on_trace_start(
        self,
        *,
        agent: "LitAgent[Any]",
        runner: "Runner[Any]",
        tracer: "Tracer",
        rollout: "Rollout",
    ) -> None:
        """The trace context is open; the agent has not been called yet."""

    async def on_trace_end(
        self,
        *,
        agent: "LitAgent[Any]",
        runner: "Runner[Any]",
        tracer: "Tracer",
        rollout: "Rollout",
    ) -> None:
        """The agent has returned or raised; the trace context is still open."""

    async def on_rollout_end(
        self,
        *,
        agent: "LitAgent[Any]",
        runner: "Runner[Any]",
        rollout: "Rollout",
        spans: "list[Span]",
    ) -> None:
        """The attempt has its final status in the store."""


class HookManager(pluggy.PluginManager):
    """pluggy's manager with agl's specs; a method that has a hook's name is one, marked or not.

    ``register`` takes a module, a class instance or an ``agl.Hook``, and takes all of it or
    nothing.
    """

    def __init__(self) -> None:
        super().__init__(hookspecs.PROJECT)
        self.add_hookspecs(hookspecs)
        self.arguments: dict[str, tuple[str, ...]] = {
            name: tuple(inspect.signature(function).parameters)
            for name, function in inspect.getmembers(hookspecs, inspect.isfunction)
            if hasattr(function, f"{hookspecs.PROJECT}_spec")
        }
        """Hook name -> what it is called with."""
        self._wanted: dict[Any, tuple[str, ...]] = {}

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        """Marked functions, and unmarked ones that have a hook's name."""
        function = getattr(plugin, name, None)
        if not inspect.isroutine(function):
            return None
        options = super().parse_hookimpl_opts(plugin, name)
        if options is not None:
            return options
        if name not in self.arguments or getattr(Hook, name, None) is getattr(
            function, "__func__", function
        ):
            return None
        return pluggy.HookimplOpts(
            wrapper=False,
            hookwrapper=False,
            optionalhook=False,
            tryfirst=False,
            trylast=False,
            specname=None,
        )

    def register(self, plugin: object, name: str | None = None) -> str | None:
        """Register all hooks of ``plugin``.

        Args:
            plugin: A module, an instance, or an ``agl.Hook``.
            name: What the log calls it; None takes the module's or class's name.

        Raises:
            ConfigError: It has no hook, a hook that does not exist, or one that asks for an
                argument that does not exist; or it was given before. Nothing was registered.
        """
        label = name or self.get_canonical_name(plugin)
        if inspect.isclass(plugin):
            raise ConfigError(f"hook plugin {label!r} is a class. Give an instance: {label}()")
        wanted = self._check(plugin, label)
        try:
            registered = super().register(plugin, name)
        except ValueError as error:
            raise ConfigError(f"hook plugin {label!r} was given twice: {error}") from None
        self._wanted.update(wanted)
        return registered

    def get_canonical_name(self, plugin: object) -> str:
        """The module's or the class's name, numbered where several share it."""
        name = getattr(plugin, "__name__", None) or type(plugin).__qualname__
        taken = [given for given, _ in self.list_name_plugin()]
        number = 2
        label = name
        while label in taken:
            label, number = f"{name}#{number}", number + 1
        return label

    def implementations(self, name: str) -> list[pluggy.HookImpl]:
        """Implementations in the order of their calls.

        Those marked ``tryfirst`` come first, those marked ``trylast`` last; otherwise as
        registered.
        """
        found: list[pluggy.HookImpl] = getattr(self.hook, name).get_hookimpls()
        return sorted(found, key=lambda impl: (not impl.tryfirst, impl.trylast))

    def call(self, implementation: pluggy.HookImpl, arguments: dict[str, Any]) -> Any:
        """Call one implementation with the arguments that it names."""
        wanted = self._wanted[implementation.function]
        return implementation.function(**{name: arguments[name] for name in wanted})

    def _check(self, plugin: object, label: str) -> dict[Any, tuple[str, ...]]:
        wanted: dict[Any, tuple[str, ...]] = {}
        for attribute in dir(plugin):
            options = self.parse_hookimpl_opts(plugin, attribute)
            if options is None:
                # Only an agl.Hook promises that each of its on_* methods is one of ours.
                if isinstance(plugin, Hook) and attribute.startswith("on_"):
                    self._check_name(attribute, label)
                continue
            name = options["specname"] or attribute
            self._check_name(name, label)
            if options["wrapper"] or options["hookwrapper"]:
                raise ConfigError(
                    f"hook plugin {label!r}: {attribute} is a wrapper; agl's hooks are observers. "
                    "Remove wrapper=True"
                )
            function = getattr(plugin, attribute)
            wanted[function] = self._arguments_of(function, name, label)
        if not wanted:
            raise ConfigError(
                f"hook plugin {label!r} has none of the hooks {', '.join(self.arguments)}"
            )
        return wanted

    def _check_name(self, name: str, label: str) -> None:
        if name not in self.arguments:
            raise ConfigError(
                f"hook plugin {label!r}: there is no hook {name!r}; the hooks are "
                f"{', '.join(self.arguments)}.{registry.did_you_mean(name, self.arguments)}"
            )

    def _arguments_of(self, function: Callable[..., Any], name: str, label: str) -> tuple[str, ...]:
        offered = self.arguments[name]
        wanted: list[str] = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                return offered
            if parameter.name in offered and parameter.kind is not parameter.POSITIONAL_ONLY:
                wanted.append(parameter.name)
            elif parameter.default is parameter.empty:
                raise ConfigError(
                    f"hook plugin {label!r}: {name} asks for {parameter.name!r}; "
                    f"it is called with {', '.join(offered)}, by name."
                    f"{registry.did_you_mean(parameter.name, offered)}"
                )
        return tuple(wanted)


class HookCaller:
    """Calls the hooks of one run and keeps their failures out of it.

    Args:
        hooks: Objects with hook methods, called after the installed plugins, in this order.
        manager: Use this manager and its plugins in place of those that are installed.

    With ``AGL_STRICT_PLUGINS=1`` a hook plugin that fails to load, or a hook that raises, raises
    here. Objects given in ``hooks`` are always refused at once if they are wrong.
    """

    def __init__(self, hooks: Sequence[object] = (), *, manager: HookManager | None = None) -> None:
        self.failures: Counter[str] = Counter()
        """Plugin name -> how many of its calls, or its loading, failed."""
        self._hooks = tuple(hooks)
        self._strict = bool(
            resolve_bool_env_var(LightningEnvVar.AGL_STRICT_PLUGINS, fallback=False)
        )
        self._logged: set[tuple[str, str]] = set()
        self._given = manager
        self.manager = manager or HookManager()
        if manager is None:
            self._load_installed()
        for hook in self._hooks:
            self.manager.register(hook)

    def __reduce__(self) -> tuple[Any, ...]:
        # Modules do not pickle; another process loads its own plugins and gets the same objects.
        if self._given is not None:
            raise TypeError("a HookCaller with a manager of its own stays in its process")
        return HookCaller, (self._hooks,)

    async def call(self, name: str, /, **arguments: Any) -> None:
        """Call every implementation of a hook, one after the other.

        Args:
            name: Of the hook.
            arguments: All that its spec has.

        Raises:
            PluginError: One raised, and ``AGL_STRICT_PLUGINS=1``.
        """
        for implementation in self.manager.implementations(name):
            try:
                result = self.manager.call(implementation, arguments)
                if isinstance(result, Awaitable):
                    await result
            except Exception as error:
                self._failed(implementation.plugin_name, name, error)

    def listens(self, name: str) -> bool:
        """Whether a hook has any implementation."""
        return bool(self.manager.implementations(name))

    def _load_installed(self) -> None:
        dropped = registry.disabled_plugins()
        names = sorted({c.name for c in registry.components(registry.GROUPS["hook"])} - dropped)
        for name in names:
            try:
                component = registry.find(registry.GROUPS["hook"], name)
                self.manager.register(_load(component), name)
            except (PluginError, ConfigError) as error:
                if self._strict:
                    raise
                self.failures[name] += 1
                logger.error("hook plugin %r is left out: %s", name, error)

    def _failed(self, plugin: str, hook: str, error: Exception) -> None:
        self.failures[plugin] += 1
        message = f"hook plugin {plugin!r}: {hook} raised {type(error).__name__}: {error}"
        if self._strict:
            raise PluginError(message) from error
        if (plugin, hook) not in self._logged:
            self._logged.add((plugin, hook))
            logger.error(
                "%s. The run goes on; further failures are counted only", message, exc_info=error
            )


def try_component(component: registry.Component) -> None:
    """Import a component and, if it is a hook plugin, see whether its hooks would be taken.

    Raises:
        PluginError: It does not load.
        ConfigError: One of its hooks would be refused.
    """
    if component.kind == "hook":
        HookManager().register(_load(component), component.name)
    else:
        registry.load_component(component)


def _load(component: registry.Component) -> object:
    plugin = registry.load_component(component)
    if not inspect.isclass(plugin):
        return plugin
    try:
        return plugin()
    except Exception as error:
        raise BrokenComponentError(
            f"{component} cannot be made: {type(error).__name__}: {error}"
        ) from error
