"""The contract of an algorithm: what improves resources from what rollouts brought."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from agl.errors import ConfigError, UnusedDatasetError
from agl.types import Dataset, NamedResources, Resource, ResourcesUpdate

if TYPE_CHECKING:
    from agl.algorithm.adapter import TraceAdapter
    from agl.algorithm.gateway import Gateway
    from agl.store.base import LightningStore


@dataclass(frozen=True)
class RunContext:
    """All that an algorithm gets for a run; the trainer makes it."""

    store: "LightningStore | None" = None
    """Where the runners look."""
    make_adapter: "Callable[[], TraceAdapter[Any]] | None" = None
    """Gives the adapter, always the same."""
    gateway: "Gateway | None" = None
    resources: NamedResources | None = None
    """What ``Trainer(initial_resources=...)`` was given."""
    hooks: Any = None
    """What calls those of the run, an ``agl.plugins.hooks.HookCaller``; None where it has none."""
    trainer: Any = None
    folder: Path | None = None
    """Of the run, for what the algorithm writes; None where the run has none."""
    run_id: str | None = None
    """Of the run; None outside of a trainer."""
    generation: int = 0
    """Which start of the run this is, from 1; 0 outside of a trainer."""
    goes_on: bool = False
    """Whether the run was asked for as one that goes on."""
    is_forced: bool = False
    """Whether the run goes on although it is not what it was."""
    what_shapes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """All on which its results depend, the algorithm's own options aside: digests of agent and
    tasks, versions, options of other components. JSON values by name."""


class Algorithm(ABC):
    """Puts rollouts in the store, learns from what comes back, publishes better resources.

    Implement ``run``; before it is called the trainer gives a ``RunContext``, which the ``get_*``
    methods read. Who runs an algorithm without a trainer calls the ``set_*`` methods that it needs.
    """

    default_adapter: ClassVar[str] = "triplet"
    """Name of the adapter that a trainer without one builds for this algorithm."""
    adapter_options: Mapping[str, Any] = MappingProxyType({})
    """Options of that adapter which this algorithm has as options of its own; a constructor sets
    it, and a trainer refuses an adapter beside it."""
    publishes: ClassVar[tuple[type[Resource], ...] | None] = None
    """Kinds of resources that ``run`` gives to all rollouts besides the initial ones; None where
    nobody knows. With it, a run whose agent needs another one is refused before it starts."""
    safe_options: ClassVar[frozenset[str]] = frozenset()
    """Options of this class that change no result: a run goes on with other values of them. Those
    of its base classes need not be named again."""
    growing_options: ClassVar[frozenset[str]] = frozenset()
    """The same of options that may become more, or lose their limit: ``steps``, say."""
    needs_gateway: ClassVar[bool] = False
    """Whether a trainer without a gateway builds the installed one for this algorithm."""

    def __class_getitem__(cls, task_type: Any, /) -> type[Self]:
        """The class itself: ``APO[Task](...)`` says what a task is to readers and type checkers."""
        return cls

    _run_context = RunContext()

    @abstractmethod
    def run(
        self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None
    ) -> None | Awaitable[None]:
        """Do the whole training; may be a coroutine function.

        ``train_dataset`` has the tasks to learn from, ``val_dataset`` those to measure with.

        Raises:
            StoppedError: It ends before its end, at a point from which it can go on. The message
                says why; the record of the run has it, and the trainer says how it goes on.
        """

    def check_datasets(
        self, train_dataset: Dataset[Any] | None, val_dataset: Dataset[Any] | None
    ) -> None:
        """Refuse datasets that ``run`` would leave unused; the trainer asks before it starts.

        Raises:
            UnusedDatasetError: One is given, and ``run`` does not take it.
        """

    def check_adapter(self, adapter: "TraceAdapter[Any]") -> None:
        """Refuse one from which it cannot learn, with a ``ConfigError``, before anything starts."""

    def is_async(self) -> bool:
        """Whether ``run`` is a coroutine function."""
        return inspect.iscoroutinefunction(self.run)

    async def clear_leftovers(self, store: "LightningStore") -> None:
        """Refuse what ``run`` would refuse, and cancel what earlier starts left under another id.

        The trainer calls it before any runner starts, and cancels then what earlier starts of the
        run itself left queued or under way. ``store`` may be one that is served elsewhere.
        """

    async def publish_resources(
        self, resources: NamedResources, resources_id: str | None = None
    ) -> ResourcesUpdate:
        """Store a snapshot for the next rollouts, and tell the hooks.

        ``resources_id`` names the snapshot that this replaces or makes; None makes another one.
        """
        store = self.get_store()
        if resources_id is None:
            update = await store.add_resources(resources)
        else:
            update = await store.update_resources(resources_id, resources)
        await Algorithm.tell(self, "on_resources_published", resources=update)
        return update

    async def tell(self, hook: str, **arguments: Any) -> None:
        """Call a hook about this algorithm, see ``agl.plugins.hookspecs``: a step of it, say.

        Raises:
            ConfigError: In a run: there is no such hook, or it has other arguments.
        """
        if (hooks := self._run_context.hooks) is not None:
            await hooks.call(hook, algorithm=self, **arguments)

    def get_run_folder(self) -> Path | None:
        """The folder of the run, absolute, for what the algorithm writes; None if it has none."""
        return self._run_context.folder

    def get_run(self) -> tuple[str, int] | None:
        """Id of the run, and which start of it this is, from 1; None outside of a trainer."""
        context = self._run_context
        return None if context.run_id is None else (context.run_id, context.generation)

    def folder_of_options(self, given: Path | None = None) -> Path | None:
        """The folder that an option ``run_dir`` of the algorithm names, else the one ``given``."""
        folder = getattr(self, "run_dir", None)
        return Path(folder).absolute() if isinstance(folder, str | Path) else given

    def is_budget_spent(self) -> bool:
        """Whether the gateway refuses all further calls; then end with what there is."""
        gateway = self._run_context.gateway
        return gateway is not None and gateway.spent_budget() is not None

    def ask_to_stop(self) -> bool:
        """Ask a running algorithm to end at its next safe point, from any thread; asked once.

        Returns whether it will, with a ``StoppedError``. False: it has no safe points.
        """
        return False

    def _cannot(self, *_: str) -> None:
        why = "cannot be asked to end, save or evaluate by a hook, as GRPO, SFT and others can"
        raise ConfigError(f"{type(self).__name__} {why}")

    ask_to_end: Any = _cannot
    ask_to_save: Any = _cannot
    ask_to_evaluate: Any = _cannot

    def set_context(self, context: RunContext) -> None:
        """Called by the trainer; what an earlier run had is forgotten."""
        self._run_context = context
        for name, value in (
            ("trainer", context.trainer),
            ("llm_proxy", context.gateway),
            ("initial_resources", context.resources),
        ):
            # One that a subclass has of its own, as scripts for 0.3 may, is to be called.
            if getattr(type(self), f"set_{name}") is not getattr(Algorithm, f"set_{name}"):
                getattr(self, f"set_{name}")(value)

    # --- the parts of the context by the names of 0.3

    def set_trainer(self, trainer: Any) -> None:
        self._change(trainer=trainer)

    def get_trainer(self) -> Any:
        """The ``agl.Trainer`` that runs this algorithm."""
        return self._need("trainer", self._run_context.trainer)

    def set_store(self, store: "LightningStore") -> None:
        self._change(store=store)

    def get_store(self) -> "LightningStore":
        """The store that the runners use."""
        return self._need("store", self._run_context.store)

    def set_adapter(self, adapter: "TraceAdapter[Any]") -> None:
        self._change(make_adapter=lambda: adapter)

    def get_adapter(self) -> "TraceAdapter[Any]":
        """The adapter from spans to what this algorithm learns from."""
        return self._need("adapter", self._run_context.make_adapter)()

    def set_llm_proxy(self, llm_proxy: "Gateway | None") -> None:
        self._change(gateway=llm_proxy)

    def get_llm_proxy(self) -> "Gateway | None":
        """The gateway, if the trainer has one."""
        return self._run_context.gateway

    def set_initial_resources(self, resources: NamedResources | None) -> None:
        self._change(resources=resources)

    def get_initial_resources(self) -> NamedResources | None:
        """What ``Trainer(initial_resources=...)`` was given."""
        return self._run_context.resources

    def _change(self, **parts: Any) -> None:
        self._run_context = replace(self._run_context, **parts)

    def _need(self, what: str, value: Any) -> Any:
        if value is None:
            name = type(self).__name__
            raise ConfigError(
                f"algorithm {name!r} has no {what} yet. Run it through agl.Trainer(algorithm=...), "
                f"or call set_{what}(...) before run()"
            )
        return value


class FastAlgorithm(Algorithm):
    """An algorithm that is quick enough for ``Trainer.dev``."""


class FunctionalAlgorithm(Algorithm):
    """An algorithm made by ``@algo`` of a function that takes any of ``INJECTED``, by name."""

    INJECTED: ClassVar[tuple[str, ...]] = (
        *("train_dataset", "val_dataset"),
        *("store", "llm_proxy", "adapter", "initial_resources"),
    )

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", type(self).__name__)
        self.__doc__ = function.__doc__
        parameters = inspect.signature(function).parameters.values()
        self._takes = [p.name for p in parameters if p.name in self.INJECTED]
        for p in parameters:
            is_needed = p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
            if is_needed and p.name not in self.INJECTED:
                raise ConfigError(
                    f"@algo {self.__name__!r}: nothing to pass for parameter {p.name!r}; "
                    f"an algorithm may take {', '.join(self.INJECTED)}"
                )

    def check_datasets(
        self, train_dataset: Dataset[Any] | None, val_dataset: Dataset[Any] | None
    ) -> None:
        """Refuse a dataset that the function does not name."""
        for name, given in (("train_dataset", train_dataset), ("val_dataset", val_dataset)):
            if given is not None and name not in self._takes:
                raise UnusedDatasetError(
                    f"@algo {self.__name__!r}: {name} is given, and the function does not take it. "
                    f"Add a parameter {name!r}, or leave the dataset out"
                )

    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def run(
        self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None
    ) -> None | Awaitable[None]:
        """Call the function with what it names; see ``check_datasets``."""
        self.check_datasets(train_dataset, val_dataset)
        given = {"train_dataset": train_dataset, "val_dataset": val_dataset}
        for name in {*self._takes} - given.keys():
            given[name] = getattr(self, f"get_{name}")()
        return self.function(**{name: given[name] for name in self._takes})


def algo(function: Callable[..., Any]) -> FunctionalAlgorithm:
    """Make an algorithm of a function, which gets the things that it names among its parameters."""
    return FunctionalAlgorithm(function)
