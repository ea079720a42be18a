"""How the modules of agentlightning hand on names: when they are used, or refused with words."""

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec, spec_from_loader
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

T = TypeVar("T")

TOP = "agentlightning"
PUBLIC = {
    "adapter.base": "Adapter OtelTraceAdapter TraceAdapter",
    "adapter.messages": "TraceToMessages",
    "adapter.triplet": "LlmProxyTraceToTriplet TraceToTripletBase TracerTraceToTriplet",
    "algorithm.apo.apo": "APO",
    "algorithm.base": "Algorithm",
    "algorithm.decorator": "algo",
    "algorithm.fast": "Baseline FastAlgorithm",
    "algorithm.verl.interface": "VERL",
    "client": "AgentLightningClient DevTaskLoader",
    "config": "lightning_cli",
    "emitter": "emit_annotation emit_exception emit_message emit_object emit_reward "
    "find_final_reward find_reward_spans get_message_value get_object_value get_reward_value "
    "get_rewards_from_span is_reward_span operation",
    "env_var": "LightningEnvVar resolve_bool_env_var resolve_int_env_var resolve_str_env_var",
    "execution.base": "ExecutionStrategy",
    "execution.client_server": "ClientServerExecutionStrategy",
    "execution.events": "ExecutionEvent MultiprocessingEvent ThreadingEvent",
    "execution.shared_memory": "SharedMemoryExecutionStrategy",
    "litagent.decorator": "llm_rollout prompt_rollout rollout",
    "litagent.litagent": "LitAgent",
    "llm_proxy": "LLMProxy",
    "logging": "configure_logger setup_logging setup_module_logging",
    "runner.agent": "LitAgentRunner",
    "runner.base": "Runner",
    "runner.legacy": "LegacyAgentRunner",
    "server": "AgentLightningServer",
    "store._client": "LightningStoreClient",
    "store.base": "LightningStore LightningStoreCapabilities LightningStoreStatistics",
    "store.client_server": "LightningStoreServer",
    "store.collection.base": "FilterOptions PaginatedResult SortOptions",
    "store.memory": "InMemoryLightningStore",
    "store.threading": "LightningStoreThreaded",
    "tracer.agentops": "AgentOpsTracer",
    "tracer.base": "Tracer clear_active_tracer get_active_tracer set_active_tracer",
    "tracer.dummy": "DummyTracer",
    "tracer.otel": "OtelTracer",
    "tracer.weave": "WeaveTracer",
    "trainer.init_utils": "build_component",
    "trainer.trainer": "Trainer",
    "types.core": "AgentLightningTask AgentResource Attempt AttemptedRollout AttemptStatus Dataset "
    "EnqueueRolloutRequest FilterField FilterOptions GenericResponse Hook LitRollout "
    "PaginatedResult ParallelWorkerBase Rollout RolloutConfig RolloutLegacy RolloutMode "
    "RolloutRawResult RolloutRawResultLegacy RolloutStatus SortOptions Task TaskIfAny TaskInput "
    "Triplet Worker WorkerStatus",
    "types.resources": "LLM NamedResources PromptTemplate ProxyLLM Resource ResourcesUpdate "
    "ResourceUnion",
    "types.tracer": "Attributes AttributeValue Event Link OtelResource Span SpanAttributeNames "
    "SpanContext SpanCoreFields SpanLike SpanNames SpanRecordingContext StatusCode TraceState "
    "TraceStatus",
}
"""Module -> its names that its package has, too, and the top; each is imported when it is used."""
HOMES = (
    "semconv types.tracer store.base utils.otel trainer.init_utils trainer.legacy "
    "utils.metrics utils.server_launcher execution.base "
    "instrumentation llm_proxy verl.entrypoint"
)
"""Where the modules of the original import other names from; they can be imported from those."""
PLUGINS = {"APO": "agl_apo", "VERL": "agl_verl"}


@cache
def public(path: str) -> dict[str, str]:
    """The names that a package hands on from its modules, and which module has each."""
    return {
        name: module
        for module, names in PUBLIC.items()
        if not path or module.startswith(f"{path}.")
        for name in names.split()
    }


def attach(module: ModuleType) -> None:
    """Have a module hand on, or refuse, what is not written in it."""
    namespace = vars(module)
    namespace.setdefault("__getattr__", rest(module.__name__))
    if names := public(path_of(module.__name__)):
        namespace["__dir__"] = lambda: sorted(names)
        # A star import gives nothing of a plugin that is not installed.
        namespace["__all__"] = [
            n for n in sorted(names) if n not in PLUGINS or find_spec(PLUGINS[n]) is not None
        ]


def rest(module: str) -> Callable[[str], Any]:
    """``__getattr__`` of a module: what is not written in it.

    That is names of a package's modules, its submodules, names that the original's module has
    because it imports them, at the top those that only agl has, and names that are refused.
    """

    def __getattr__(name: str) -> Any:
        if not name.startswith("_"):
            from agentlightning._refused import REFUSED

            if name in REFUSED:
                refuse(module, name, REFUSED[name])
            with suppress(LookupError):
                value = vars(sys.modules[module])[name] = _found(module, path_of(module), name)
                return value
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__


def _found(module: str, path: str, name: str) -> Any:
    is_package = hasattr(sys.modules[module], "__path__")
    if name not in public(path) and is_package and find_spec(f"{module}.{name}") is not None:
        return import_module(f"{module}.{name}")
    homes = (home for home in HOMES.split() if home != path and name in dir(_module(home)))
    home = public("").get(name) or next(homes, None)
    if home is not None and home != path:
        return getattr(_module(home), name)
    if not path or name in PLUGINS:
        import agl

        if hasattr(agl, name):
            return getattr(agl, name)
    raise LookupError(name)


def path_of(module: str) -> str:
    """Below agentlightning; empty for the top."""
    return module.removeprefix(TOP).removeprefix(".")


def _module(path: str) -> ModuleType:
    return import_module(f"{TOP}.{path}")


class Finder:
    """Finds the modules of agentlightning, and has each hand on what is not written in it.

    A module of the original in which all is refused has no file.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> "ModuleSpec | None":
        if not name.startswith(f"{TOP}."):
            return None
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path, target)
        if spec is None:
            from agentlightning._refused import MODULES

            return spec_from_loader(name, _REFUSING) if path_of(name) in MODULES.split() else None
        loader = spec.loader
        if loader is not None and not path_of(name).startswith("_"):
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                attach(module)

            loader.exec_module = exec_module
        return spec


_REFUSING: Any = SimpleNamespace(create_module=lambda spec: None, exec_module=attach)
"""The loader of a module without a file."""


def refuse(module: str, name: str, why: str) -> NoReturn:
    """Say that agl does not have a name, and what to use; called by ``__getattr__`` of a module.

    It is an ImportError where ``from module import name`` asks, which would drop the words of an
    AttributeError.
    """
    from agentlightning._errors import RefusedAttributeError, RefusedImportError

    kind = RefusedImportError if _asked_by_import() else RefusedAttributeError
    raise kind(f"{module}.{name} is not in agl: {why}")


def _asked_by_import() -> bool:
    """Whether the ``__getattr__`` that is running was called by ``from module import name``."""
    import dis

    asking = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while asking.f_code.co_name != "__getattr__" and asking.f_back is not None:
        asking = asking.f_back
    while asking.f_code.co_name == "__getattr__" and asking.f_back is not None:
        asking = asking.f_back
    return dis.opname[asking.f_code.co_code[asking.f_lasti]] == "IMPORT_FROM"


def refusing(reasons: dict[str, str]) -> Callable[[type[T]], type[T]]:
    """Decorate a class whose original has more methods: asking for one says what to use instead.

    ``reasons`` are what to use -> the names for which that is so, as in ``_refused``.
    """
    whys = {name: why for why, names in reasons.items() for name in names.split()}

    def decorate(cls: type[T]) -> type[T]:
        for name, why in whys.items():
            setattr(cls, name, _RefusedMethod(f"{cls.__name__}.{name} is not in agl: {why}"))
        return cls

    return decorate


class _RefusedMethod:
    """Says what to use instead, for the class as for its instances."""

    def __init__(self, about: str) -> None:
        self._about = about

    def __get__(self, instance: object, owner: type | None = None) -> NoReturn:
        raise AttributeError(self._about)
