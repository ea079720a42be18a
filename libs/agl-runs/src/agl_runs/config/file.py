"""The file that ``agl run`` reads: ``agl.yaml`` plus overrides, checked as a whole.

``load_config`` reads keys and values, ``check_config`` loads and checks all that they name.
Neither builds a component or starts anything.
"""

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import Any, cast

from agl.agent.base import LitAgent
from agl.algorithm.base import Algorithm
from agl.cli.shared import note
from agl.errors import ConfigError
from agl.plugins import registry
from agl.plugins.build import ComponentPlan, import_attribute, located, plan_component
from agl.plugins.hooks import HookManager
from agl.plugins.parts import adapter_maker, default_strategy, plan_part
from agl.plugins.schema import key, schema_of, validate
from agl.store.base import LightningStore
from agl.tracer.base import DummyTracer
from agl.trainer import Trainer
from agl.types import NamedResources
from agl.utils.catalogue import public_names
from agl.utils.checks import check_numbers
from agl.utils.secrets import HIDDEN
from agl.utils.text import did_you_mean
from agl_runs.config.datasets import load_dataset
from agl_runs.config.overrides import Layers, apply_overrides, lay_over, naming, read, read_layers
from agl_runs.config.resources import resources_of
from agl_runs.config.sides import role_of, take_environments
from agl_runs.differences import flat
from agl_runs.environments import AbsentAgent, Environment, add_reward, load_environment
from agl_runs.folders import CONFIG, STORE
from agl_runs.records import Run
from agl_runs.secrets import expand, redact
from agl_runs.user_code import put_on_path

ComponentSpec = str | dict[str, Any]
"""A name, a path ``module:attribute``, or a dict of ``type`` and options."""


@dataclass(frozen=True)
class RunConfig:
    """What one run is made of: the keys of ``agl.yaml``."""

    agent: str | None = None
    """``module:attribute``, looked for beside the file and in the working directory."""
    environment: ComponentSpec | None = None
    """In the place of ``agent``: an agent with its tasks, by name; see ``agl plugins``."""
    reward: ComponentSpec | None = None
    """What grades the agent, if it has no grader: a name, or ``module:function``."""
    train: str | None = None
    """File of tasks to learn from: JSON, JSONL, CSV or Parquet."""
    val: str | None = None
    """File of tasks to measure with."""
    algorithm: ComponentSpec | None = None
    """What learns; ``agl dev`` can do without."""
    adapter: ComponentSpec | None = None
    """What the algorithm reads spans with; by default the one that the algorithm asks for."""
    tracer: ComponentSpec = "otel"
    """How spans are collected."""
    store: ComponentSpec = "sqlite"
    """Where all meet; by default a file in the run's folder."""
    strategy: ComponentSpec = field(default_factory=default_strategy)
    """Where algorithm and runners run: processes (``cs``, of agl-server) or threads (``shm``)."""
    gateway: ComponentSpec | None = None
    """The LLM proxy; by default the installed one, for algorithms that need it."""
    resources: dict[str, dict[str, Any]] | None = None
    """Name -> resource; ``type`` is ``prompt_template``, ``llm`` or ``proxy_llm``."""
    hooks: list[ComponentSpec] = field(default_factory=list[ComponentSpec])
    """What watches the run: a name, ``module:attribute``, or ``type`` and options."""
    runners: int | None = None
    """How many runners there are; the strategy's default if left out."""
    concurrency: int | None = None
    """How many rollouts each runner runs at once; ``AGL_CONCURRENCY`` if left out, else 1."""
    runner: ComponentSpec | None = None
    """What claims and runs rollouts; by default ``LitAgentRunner``, whose options may be given."""
    max_rollouts: int | None = None
    """Each runner ends after so many."""
    run_dir: str | None = None
    """Folder for what the run leaves behind; by default ``agl-runs/<id of the run>``."""

    @classmethod
    def explain_option(cls, name: str, values: Mapping[str, Any]) -> str:
        """The key of what others call so, or nearly so; else the part whose option it is."""
        from agl_runs.config.overrides import part_with

        others = public_names("keys of a file")
        near = get_close_matches(name, others, n=1, cutoff=0.8)
        if hint := f" Here it is {others[near[0]]!r}" if near else did_you_mean(name, vars(cls())):
            return hint
        part = part_with(name, {**vars(cls()), **values})
        return f" It is an option of the {part}: {part}.{name}" if part else ""


@dataclass(frozen=True)
class ConfigFile:
    """A configuration with where it came from."""

    path: Path
    config: RunConfig
    values: dict[str, Any]
    """What file and overrides say; ``${NAME}`` is not expanded, so it can be shown redacted."""
    read_from: Path | None = None
    """Where ``values`` stand, if not in ``path``: in the folder of a run."""
    layers: Layers = ()
    """The files that lie over each other; ``path`` is the first."""
    environments: dict[str, str] = field(default_factory=dict[str, str])
    """Side -> the virtual environment that runs it; see ``apart``."""
    overrides: Sequence[str] = ()

    def where(self, *keys: object) -> str:
        """What messages about a key begin with."""
        return reduce(key, keys, f"{(self.read_from or self.path).name}:")


@dataclass(frozen=True)
class CheckedConfig:
    """Everything that a configuration names, loaded and checked; no component was built."""

    file: ConfigFile
    agent: LitAgent[Any]
    train: Sequence[Any] | None
    val: Sequence[Any] | None
    components: dict[str, ComponentPlan[Any]]
    """Key of the file -> what to build; keys without a component are left out."""
    hooks: list[object]
    resources: NamedResources | None

    def build(self, *names: str) -> dict[str, Any]:
        """These of the components, else all but the store, which may make a file; for a trainer."""
        wanted = names or self.components.keys() - {"store"}
        built = {name: plan.build() for name, plan in self.components.items() if name in wanted}
        return {"llm_proxy": built.pop("gateway", None), **built}

    def check_fit(self) -> None:
        """Build all but the store, and refuse what the trainer would."""
        built = self.build()
        if algorithm := built.get("algorithm"):
            algorithm.check_datasets(self.train, self.val)
            adapter_maker(built.get("adapter"), algorithm, self.agent.trained_agents)

    def trainer(
        self, components: dict[str, Any], store: LightningStore | None, **options: Any
    ) -> Trainer:
        """A trainer of these components; ``options`` are ``Trainer``'s and go before the file's."""
        names = "max_rollouts", "concurrency", "runner"
        about: dict[str, Any] = {name: getattr(self.file.config, name) for name in names}
        about |= {"initial_resources": self.resources, "hooks": self.hooks}
        return Trainer(store=store, **(about | components | options))

    def resolved(self) -> dict[str, Any]:
        """Every key and option with the value in force, defaults included, secrets redacted."""
        # As read where it was given, since that still has ``${NAME}`` in place.
        values = {**vars(self.file.config), **self.file.values}
        for name, plan in self.components.items():
            values[name] = with_defaults(values[name], plan)
        return redact(values)


def as_yaml(values: dict[str, Any]) -> str:
    """Values as YAML, in their order."""
    import yaml

    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> ConfigFile:
    """Read a file and apply overrides; keys and types are checked, names are not yet looked up.

    The file's folder and the working directory are put on ``sys.path``, and stay there for the
    runners.

    Args:
        path: A YAML file.
        overrides: ``key=value`` each; dots lead into blocks, and the value is YAML. What ends in
            ``.yaml`` or ``.yml`` is a file that lies over those before it.

    Raises:
        ConfigError: A file cannot be read, or has an unknown key or a value of a wrong type.
    """
    return configured(*read_layers(Path(path), overrides))


def load_config_of_run(run: Run, overrides: Sequence[str] = ()) -> ConfigFile:
    """Read the configuration that a run had, out of its folder, and apply overrides.

    Names and paths in it are meant beside the file that it came from.

    Raises:
        ConfigError: As ``load_config``; or it has a secret, which was not written down.
    """
    written = Path(run.folder or "") / CONFIG
    if not written.is_file():
        raise ConfigError(
            f"run {run.run_id!r}: its folder has no {CONFIG}, as it was begun from Python. Go on "
            f"in the script that began it, with Trainer(run={run.run_id!r}, resume=True), or name "
            "a file: agl run FILE --resume RUN"
        )
    values = read(written)
    hidden = [name for name, value in flat(values).items() if HIDDEN in str(value)]
    if hidden:
        raise ConfigError(
            f"{written}: {', '.join(hidden)} was hidden when it was written. Name the file that "
            "the run was begun with: agl run FILE --resume RUN"
        )
    return configured([(Path(run.config.get("file", written)), values)], overrides, written)


def configured(
    layers: Layers, overrides: Sequence[str], read_from: Path | None = None
) -> ConfigFile:
    """The configuration of files, each with its values; for the rest see ``load_config``."""
    values: dict[str, Any] = reduce(lay_over, (one for _, one in layers), {})
    apply_overrides(values, overrides)
    path = layers[0][0]
    put_on_path(path.resolve().parent, os.getcwd())  # the folder first, as a script's
    where = f"{(read_from or path).name}:"
    with naming(layers):
        converted = validate(RunConfig, expand(values, where), where)
    sides = take_environments(converted)
    return ConfigFile(path, RunConfig(**converted), values, read_from, layers, sides, overrides)


def check_config(file: ConfigFile, *, run_dir: Path, dry: bool = False) -> CheckedConfig:
    """Load and check everything that the configuration names.

    A store that needs a path gets one in ``run_dir``; ``dry``, for ``agl dev``, leaves out
    the algorithm with its adapter. What the role of this process has no use for is left out, too.

    Raises:
        ConfigError: A module, attribute, resource or option is wrong.
        DatasetError: A dataset is missing, empty or unreadable.
        PluginError: A component is unknown or does not load.
    """
    with naming(file.layers):
        return _check(file, run_dir, dry)


def _check(file: ConfigFile, run_dir: Path, dry: bool) -> CheckedConfig:
    folder = file.path.resolve().parent
    config, role = file.config, role_of(file.config.strategy)
    if role == "both" and file.environments:
        raise ConfigError(
            f"{file.where()} its algorithm or runner has an environment of its own, which only agl "
            "run starts; leave it out, and use the agl of that environment"
        )
    dry = dry or role == "runner"
    if config.algorithm is None and not dry:
        names = registry.names_in("agl.algorithms")
        raise ConfigError(f"{file.where('algorithm')}: missing; installed: {', '.join(names)}")
    environment = _load_environment(file)
    agent, is_absent = environment.agent, isinstance(environment.agent, AbsentAgent)
    if config.reward is not None and not is_absent:
        agent = add_reward(agent, config.reward, file.where("reward"))
    datasets = {
        name: _load_tasks(value, folder, file.where(name))
        for name, value in (("train", config.train), ("val", config.val))
        if value is not None and role != "runner"
    }
    plans = _plan_components(file, run_dir, dry)
    resources = resources_of(config.resources, file.where("resources"))
    publishes = () if dry else getattr(plans["algorithm"].target, "publishes", None)
    if config.store == RunConfig.store and not is_absent:  # no other has resources yet
        with located(file.where("agent")):
            agent.check_resources(resources or {}, publishes)
    return CheckedConfig(
        file=file,
        agent=agent,
        train=datasets.get("train", environment.train),
        val=datasets.get("val", environment.val),
        components=plans,
        hooks=[_load_hook(spec, file.where("hooks", n)) for n, spec in enumerate(config.hooks)],
        resources=resources,
    )


def _plan_components(file: ConfigFile, run_dir: Path, dry: bool) -> dict[str, ComponentPlan[Any]]:
    config, said_by, role = file.config, file.path.name, role_of(file.config.strategy)
    plans: dict[str, ComponentPlan[Any]] = {}

    def plan(name: str, spec: ComponentSpec | None, **given: Any) -> ComponentPlan[Any]:
        return plan_part(name, spec, where=file.where(name), said_by=said_by, **given)

    asked_for = "rows"  # where no algorithm asks for another
    if not dry:
        plans["algorithm"] = plan("algorithm", config.algorithm)
        target = plans["algorithm"].target
        asked_for = getattr(target, "default_adapter", Algorithm.default_adapter)
    if config.adapter is not None and role != "runner" and (not dry or config.algorithm is None):
        plans["adapter"] = plan("adapter", config.adapter, default=asked_for)
    if role != "algorithm":
        plans["tracer"] = plan("tracer", config.tracer)
    plans["store"] = plan("store", config.store, default="sqlite", path=str(run_dir / STORE))
    check_numbers(said_by, whole=True, optional=True, least=1, runners=config.runners)
    plans["strategy"] = plan("strategy", config.strategy, said={"runners": config.runners})
    if config.gateway is not None and role != "runner":
        plans["gateway"] = plan("gateway", config.gateway)
    if role == "algorithm":
        return plans
    said = {"concurrency": config.concurrency, "max_rollouts": config.max_rollouts}
    runner = plan("runner", config.runner, said=said, tracer=DummyTracer())
    if inspect.isclass(runner.target):
        runner.build()  # refuses what its constructor does; the trainer builds those that run
    return plans


def _load_environment(file: ConfigFile) -> Environment:
    config = file.config
    if config.environment is None and config.agent is not None:
        try:
            return Environment(_load_agent(config.agent, file.where("agent")))
        except ConfigError as error:
            if role_of(config.strategy) != "algorithm" or not file.environments:
                raise
            why = str(error).rstrip(".")
            note(f"{why}. The algorithm goes without; give adapter.agent_match if it trains some")
            return Environment(AbsentAgent())
    if config.environment is None or config.agent is not None:
        have = "both" if config.agent else "neither"
        raise ConfigError(
            f"{file.where()} expected one of 'agent' and 'environment', which has an agent; there "
            f"is {have}"
        )
    return load_environment(config.environment, file.where("environment"))


def _load_agent(path: str, where: str) -> LitAgent[Any]:
    found: Any = import_attribute(path, where)
    kind = cast("type", found if inspect.isclass(found) else type(found))
    if not issubclass(kind, LitAgent):
        what = "a function without @agl.rollout" if inspect.isfunction(found) else repr(found)
        raise ConfigError(
            f"{where}: expected an agent (a function with @agl.rollout, or an agl.LitAgent), "
            f"got {what}"
        )
    return plan_component(found, group=None, expected_type=LitAgent, where=where).build()


def _load_tasks(value: str, folder: Path, where: str) -> list[Any]:
    beside = folder / value
    with located(where):
        return load_dataset(beside if beside.exists() or not Path(value).exists() else value)


def _load_hook(spec: ComponentSpec, where: str) -> object:
    group = registry.GROUPS["hook"]
    hook = plan_component(spec, group=group, expected_type=object, where=where).build()
    with located(where):
        # A manager of its own refuses now what a runner would refuse later.
        HookManager().register(hook)
    return hook


def with_defaults(spec: ComponentSpec, plan: ComponentPlan[Any]) -> dict[str, Any]:
    """The options of a component with those that are not given, as far as YAML can say them."""
    given = dict(spec) if isinstance(spec, dict) else {"type": spec}
    named = {"type": plan.component.name} if plan.component else {}
    options = schema_of(plan.target).options if callable(plan.target) else ()
    defaults = {o.name: _plain(o.default) for o in options}
    chosen = {name: value for name, value in plan.options.items() if _is_plain(value)}
    found = {**named, **{n: x for n, x in defaults.items() if _is_plain(x)}, **chosen, **given}
    for option in options:
        as_given: Any = given.get(option.name)
        more = cast("dict[str, Any]", as_given) if isinstance(as_given, dict) else {}
        is_group = is_dataclass(option.default) or (option.default is None and "" in more)
        if is_group and isinstance(chosen.get(option.name), dict):
            more = {name: value for name, value in more.items() if name}
            found[option.name] = {**(defaults[option.name] or {}), **chosen[option.name], **more}
    return found


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _is_plain(value: Any) -> bool:
    """Whether YAML and JSON have a form for it."""
    if isinstance(value, list | dict):
        inner = cast(Any, value).values() if isinstance(value, dict) else cast("list[Any]", value)
        return all(map(_is_plain, inner))
    return isinstance(value, str | int | float | bool | None)
