"""Calling hooks: every implementation gets what it names, and none can break the run.

The specs are in ``agl.plugins.hookspecs``. Implementations come from installed hook plugins
(entry point group ``agl.plugins``) and from objects given to a trainer or a runner.
"""

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast

import pluggy

from agl.env import LightningEnvVar, resolve_bool_env_var
from agl.errors import BrokenComponentError, ConfigError, PluginError
from agl.plugins import hookspecs, registry
from agl.utils.text import did_you_mean, full_name_of

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from agl.store.base import LightningStore

logger = logging.getLogger(__name__)
CALLED = ContextVar("agl_hook", default="")  # the plugin, by name, whose hook is at work


class Hook:
    """Base of objects that watch a run: write methods named as hooks, with the arguments you need.

    Give instances to ``Trainer(hooks=[...])`` or ``run_context(hooks=[...])``. A method may be a
    coroutine function or a plain one. What it raises is logged and counted; the run goes on.
    """

    async def _ignore(self, **arguments: Any) -> None:
        """Do nothing: 0.3's hooks may call its four with ``super()``."""

    on_rollout_start: Any = _ignore
    on_trace_start: Any = _ignore
    on_trace_end: Any = _ignore
    on_rollout_end: Any = _ignore


class HookManager(pluggy.PluginManager):
    """pluggy's manager with agl's specs; a method that has a hook's name is one, marked or not.

    pluggy finds and orders implementations, and takes all of a plugin or nothing. Beyond it,
    arguments may be keyword-only, as 0.3's are, and what is wrong is refused by the nearest right
    name.
    """

    def __init__(self) -> None:
        super().__init__(hookspecs.PROJECT)
        self.add_hookspecs(hookspecs)
        self.arguments: dict[str, tuple[str, ...]] = {
            name: caller.spec.argnames for name, caller in vars(self.hook).items()
        }
        """Hook name -> what it is called with."""
        self.wanted: dict[tuple[str, Any], list[str]] = {}
        """Hook name and implementation -> the arguments that it names."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        """As pluggy, and unmarked functions with a hook's name; refuses what is wrong."""
        options = super().parse_hookimpl_opts(plugin, name)
        # On an `agl.Hook` every `on_*` method is a hook. On other objects a method counts only if
        # its name nearly is a hook's.
        is_meant = isinstance(plugin, Hook) and name.startswith("on_")
        is_meant |= name[0] != "_" and bool(get_close_matches(name, self.arguments, cutoff=0.9))
        if options is None and not is_meant:
            return None
        function: Any = getattr(plugin, name)
        if options is None:
            is_own = getattr(function, "__func__", function) is vars(Hook).get(name)
            if is_own or not inspect.isroutine(function):
                return None
            options = cast(pluggy.HookimplOpts, {})
        hook = options.get("specname") or name
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(f"{name} is a generator or a wrapper; hooks observe. Remove `yield`")
        self.wanted[hook, function] = _wanted(function, hook, self.arguments_of(hook))
        return options

    def arguments_of(self, hook: str) -> tuple[str, ...]:
        """What a hook is called with; a ConfigError if there is no such hook."""
        if hook not in self.arguments:
            raise ConfigError(
                f"there is no hook {hook!r}; the hooks are {', '.join(self.arguments)}."
                f"{did_you_mean(hook, self.arguments)}"
            )
        return self.arguments[hook]

    def register(self, plugin: object, name: str | None = None) -> str | None:
        """Register all hooks of a module, an instance, or an ``agl.Hook``; ``name`` is for the log.

        Raises:
            ConfigError: It has no hook and is no ``Hook``; one of its hooks, or an argument of one,
                does not exist; or it was given before. Nothing was registered.
        """
        label = name or self.get_canonical_name(plugin)
        try:
            if inspect.isclass(plugin):
                raise ConfigError(f"it is a class. Give an instance: {plugin.__name__}()")
            if self.is_registered(plugin):
                raise ConfigError("it was given twice")
            super().register(plugin, label)
            if not self.get_hookcallers(plugin) and not isinstance(plugin, Hook):
                self.unregister(plugin)
                raise ConfigError(f"it has none of the hooks {', '.join(self.arguments)}")
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"hook plugin {label!r}: {error}") from None
        return label

    def get_canonical_name(self, plugin: object) -> str:
        """The module's or the class's name, numbered if several share it."""
        name = getattr(plugin, "__name__", None) or full_name_of(type(plugin))
        same = sum(given.partition("#")[0] == name for given, _ in self.list_name_plugin())
        return f"{name}#{same + 1}" if same else name


def _wanted(function: Callable[..., Any], hook: str, offered: tuple[str, ...]) -> list[str]:
    wanted: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            return list(offered)
        if parameter.name in offered and parameter.kind is not parameter.POSITIONAL_ONLY:
            wanted.append(parameter.name)
        elif parameter.default is parameter.empty:
            raise ConfigError(
                f"{hook} asks for {parameter.name!r}; it is called with {', '.join(offered)}, by "
                f"name.{did_you_mean(parameter.name, offered)}"
            )
    return wanted


class HookCaller(Sequence[object]):
    """Calls the hooks of one run and keeps their failures out of it; a sequence of its ``hooks``.

    With ``AGL_STRICT_PLUGINS=1`` a hook plugin that fails to load, or a hook that raises, raises
    here. Objects given in ``hooks`` are always refused at once if they are wrong.

    Args:
        hooks: Objects with hook methods, called after the installed plugins, in this order.
        manager: Use this manager and its plugins in place of those that are installed.
    """

    def __init__(self, hooks: Sequence[object] = (), *, manager: HookManager | None = None) -> None:
        self.failures: Counter[str] = Counter()
        """Plugin name -> how many of its calls, or its loading, failed."""
        self._hooks = tuple(hooks)
        self._strict = resolve_bool_env_var(LightningEnvVar.AGL_STRICT_PLUGINS, fallback=False)
        self._counts: Counter[tuple[str, str]] = Counter()
        self.manager = manager or HookManager()
        # pluggy calls first what was registered last.
        for hook in reversed(self._hooks):
            self.manager.register(hook)
        if manager is None:
            self._load_installed()

    def __reduce__(self) -> tuple[Any, ...]:
        # Modules do not pickle; another process loads its own plugins and gets the same objects.
        return HookCaller, (self._hooks,)

    def __len__(self) -> int:
        return len(self._hooks)

    def __getitem__(self, index: Any) -> Any:
        return self._hooks[index]

    async def call(
        self, name: str, take: Callable[[Any], object] | None = None, /, **arguments: Any
    ) -> None:
        """Call every implementation of a hook, one after the other, in pluggy's order.

        Args:
            take: Gets each answer that is not None; what it raises is the plugin's failure as well.

        Raises:
            ConfigError: There is no such hook, or it has other arguments; nothing was called.
            PluginError: One raised, and ``AGL_STRICT_PLUGINS=1``.
        """
        offered = self.manager.arguments_of(name)
        if arguments.keys() != set(offered):
            raise ConfigError(f"{name} takes {', '.join(offered)}; got {', '.join(arguments)}")
        # Not by pluggy, which stops at the first failure and awaits nothing.
        for each in reversed(getattr(self.manager.hook, name).get_hookimpls()):
            CALLED.set(each.plugin_name)
            try:
                wanted = self.manager.wanted[name, each.function]
                result: Any = each.function(**{key: arguments[key] for key in wanted})
                if inspect.isawaitable(result):
                    result = await result
                if take is not None and result is not None:
                    take(result)
            except (Exception, asyncio.CancelledError) as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                    raise
                self._failed(each.plugin_name, name, error)
        CALLED.set("")

    def listens(self, name: str) -> bool:
        """Whether a hook has any implementation."""
        return bool(getattr(self.manager.hook, name).get_hookimpls())

    def _load_installed(self) -> None:
        group = registry.GROUPS["plugin"]
        names = {c.name for c in registry.components(group)} - registry.disabled_plugins()
        for name in sorted(names, reverse=True):
            try:
                self.manager.register(load_plugin(registry.find(group, name)), name)
            except (PluginError, ConfigError) as error:
                if self._strict:
                    raise
                self.failures[name] += 1
                logger.error("hook plugin %r is left out: %s", name, error)

    def _failed(self, plugin: str, hook: str, error: BaseException) -> None:
        self.failures[plugin] += 1
        message = f"hook plugin {plugin!r}: {hook} raised {type(error).__name__}: {error}"
        if self._strict:
            raise PluginError(message) from error
        self._counts[plugin, hook] += 1
        if (count := str(self._counts[plugin, hook])).strip("0") == "1":  # and 10, 100, ..
            logger.error("%s. The run goes on; failures so far: %s", message, count, exc_info=error)


async def routes_of(hooks: HookCaller, store: "LightningStore") -> "list[BaseRoute]":
    """What plugins answer at the address of a store that is about to be served."""
    from starlette.routing import BaseRoute

    routes: list[BaseRoute] = []

    def take(given: Iterable[Any]) -> None:
        new = list(given)
        if wrong := [route for route in new if not isinstance(route, BaseRoute)]:
            raise TypeError(f"{wrong[0]!r} is no route of starlette")
        routes.extend(new)

    await hooks.call("store_routes", take, store=store)
    return routes


def load_plugin(component: registry.Component) -> object:
    """What has the hooks of a plugin, made if it is a class; PluginError if it does not load."""
    plugin = registry.load_component(component)
    if not inspect.isclass(plugin):
        return plugin
    try:
        with registry.stdout_to_stderr():
            return plugin()
    except Exception as error:
        raise BrokenComponentError(f"{component} cannot be made: {error!r}") from error
