"""What is supported takes 0.3's arguments, with its defaults, and has its methods and fields.

``names_of_0_3.json`` was measured from agentlightning 0.3.0, and holds facts alone.
"""

import enum
import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from agentlightning._names import _RefusedMethod

from .test_names import FACTS, names_of, outcome

pytestmark = pytest.mark.plugins

DIFFERENT = {
    "algorithm.apo.apo.APO.run": "0.3's decorators give store and llm_proxy; callers do not",
    "algorithm.fast.Baseline.run": "the same",
    "algorithm.decorator.algo": "a decorator, called with its function by position",
    "algorithm.decorator.FunctionalAlgorithm": "made by algo",
    "emitter.annotation.OperationContext": "made by operation",
    "litagent.decorator.FunctionalLitAgent": "made by rollout",
    "litagent.decorator.llm_rollout": "a decorator",
    "litagent.decorator.prompt_rollout": "a decorator",
    "litagent.decorator.rollout": "a decorator",
    "litagent.litagent.LitAgent.on_rollout_end": "0.3's runner calls neither; hooks have the names",
    "litagent.litagent.LitAgent.on_rollout_start": "the same",
    "runner.agent.LitAgentRunner.tracer": "an attribute of the instance",
    "store.base.LightningStoreStatistics": "the store evicts nothing, so it measures no memory",
    "store.client_server.LightningStoreClient.retry_delays": "a restart takes longer than 8 s",
    "types.core.Hook": "0.3's hooks inherit a worker's life, and nobody calls it",
    "types.resources.PromptTemplate.engine": "a default is no less",
    "verl.entrypoint": "for the command line",
    "instrumentation.LITELLM_INSTALLED": "says what is installed",
    "get_client": "0.1's algorithms asked their server by it; get_store() has the tasks",
    "runner.legacy.LegacyAgentRunner": "0.1's scripts call run and iter",
    "trainer.legacy.TrainerLegacy": "its processes are those of a strategy",
    "trainer.trainer.Trainer.client": "the same",
    "trainer.trainer.Trainer.init": "the same",
    "trainer.trainer.Trainer.init_worker": "the same",
    "trainer.trainer.Trainer.kill_orphaned_processes": "the same",
    "trainer.trainer.Trainer.run": "the same",
    "trainer.trainer.Trainer.teardown": "the same",
    "trainer.trainer.Trainer.teardown_worker": "the same",
}
"""Path -> why it is otherwise; what is below it, too."""


def signature(value: Any) -> list[dict[str, Any]] | None:
    """The parameters of a callable: name, kind, and default as it prints."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return None
    parameters: list[dict[str, Any]] = []
    for parameter in found.parameters.values():
        entry: dict[str, Any] = {"name": parameter.name, "kind": parameter.kind.name}
        if parameter.default is not inspect.Parameter.empty:
            default = parameter.default
            entry["default"] = repr(default) if plain(default) else type(default).__name__
        parameters.append(entry)
    return parameters


def plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(plain(item) for item in value)
    if isinstance(value, enum.Enum):
        return True
    return value is None or isinstance(value, (str, int, float, bool))


def is_known(path: str) -> bool:
    return any(
        f"{path}.".startswith(f"{known}.") or path.endswith(f".{known}") for known in DIFFERENT
    )


def as_ours(default: str) -> str:
    return "Unset" if default == "_UnsetType" else default


def of_call(path: str, theirs: list[dict[str, Any]] | None, ours: Any) -> Iterator[str]:
    """What a call with 0.3's arguments meets."""
    mine = signature(ours)
    if theirs is None or mine is None:
        return
    kinds = {each["kind"] for each in mine}
    by_name = {each["name"]: each for each in mine}
    named = [t for t in theirs if not t["kind"].startswith("VAR_") and t["name"] != "self"]
    for each in named:
        own = by_name.get(each["name"])
        if own is None or own["kind"] == "POSITIONAL_ONLY":
            if "VAR_KEYWORD" not in kinds and each["kind"] != "POSITIONAL_ONLY":
                yield f"{path}.{each['name']}: not taken"
        elif "default" in each and as_ours(each["default"]) != own.get("default"):
            yield f"{path}.{each['name']}: {each['default']} is {own.get('default')}"
    positional = ("POSITIONAL_OR_KEYWORD", "POSITIONAL_ONLY")
    order = [each["name"] for each in named if each["kind"] in positional]
    my_order = [e["name"] for e in mine if e["kind"] in positional and e["name"] != "self"]
    if "VAR_POSITIONAL" not in kinds and my_order[: len(order)] != order:
        yield f"{path}: order {order} is {my_order}"
    for name in by_name.keys() - {each["name"] for each in theirs}:
        if "default" not in by_name[name] and not by_name[name]["kind"].startswith("VAR_"):
            yield f"{path}: needs {name}"


def of_class(path: str, facts: dict[str, Any], ours: Any) -> Iterator[str]:
    """What is otherwise in a class."""
    for name, value in facts.get("members", {}).items():
        if not issubclass(ours, enum.Enum) or ours[name].value != value:
            yield f"{path}.{name}"
    if facts["kind"] == "model":
        for name, default in facts["fields"].items():
            field = ours.model_fields[name]
            own = "required" if field.is_required() else repr(field.default)
            if own != default and "PydanticUndefined" not in (own, default):
                yield f"{path}.{name}: {default} is {own}"
    if facts["kind"] == "typed dict" and set(facts["fields"]) - set(ours.__annotations__):
        yield f"{path}: fields"
    for name, parameters in (facts.get("methods") or {}).items():
        if isinstance(inspect.getattr_static(ours, name, None), _RefusedMethod):
            continue
        if not hasattr(ours, name):
            yield f"{path}.{name}: no such method"
        elif isinstance(parameters, list):
            yield from of_call(f"{path}.{name}", parameters, getattr(ours, name))


@pytest.mark.parametrize("module", FACTS)
def test_signatures_of_a_module_are_those_of_0_3(module: str) -> None:
    found: list[str] = []
    for name in names_of(module):
        facts = FACTS[module]["names"][name]
        if "from" in facts or outcome(module, name) != "supported":
            continue
        ours = getattr(import_module(module), name)
        path = f"{module.partition('.')[2]}.{name}"
        kinds = [each["kind"] for each in facts.get("signature") or ()]
        if "signature" in facts and kinds != ["VAR_POSITIONAL", "VAR_KEYWORD"]:
            found += of_call(path, facts["signature"], ours)
        if facts["kind"] == "value" and repr(ours) != facts["value"]:
            found.append(f"{path}: {facts['value']} is {ours!r}")
        if isinstance(ours, type):
            found += of_class(path, facts, ours)
    assert [each for each in found if not is_known(each.partition(":")[0])] == []
