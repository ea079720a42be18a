"""Write agl-verl's ``known_keys.json``: every key of verl's configuration, without its values.

    python tests/plugins/verl/real/known_keys.py

Run it where verl is installed, after a new release of verl; a test compares the file with the
installed verl. Keys come from verl's YAML files, for each of its engines, and from the dataclasses
that they name: those have fields that no file mentions. A key whose value is free
(``engine_kwargs.vllm``, ``override_config``) has ``true``, one without keys below it ``null``.
"""

import dataclasses
import importlib
import importlib.util
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[4] / "plugins/agl-verl/src/agl_verl/known_keys.json"
ENGINES = ("dp", "megatron", "veomni", "torchtitan")


def known_keys() -> dict[str, Any]:
    """The keys of the installed verl, nested as they are."""
    import hydra
    from omegaconf import OmegaConf

    spec = importlib.util.find_spec("verl")
    assert spec is not None
    assert spec.origin is not None
    folder = str(Path(spec.origin).parent / "trainer" / "config")
    found: dict[str, Any] = {}
    for engine in ENGINES:
        with hydra.initialize_config_dir(config_dir=folder, version_base=None):
            config = hydra.compose("ppo_trainer", overrides=[f"model_engine={engine}"])
        _merge(found, _keys(OmegaConf.to_container(config)))
    found["ray_kwargs"]["ray_init"] = True  # passed to ray.init as it is
    _free(found, "wrap_policy")  # verl takes more than it mentions
    return _sorted(found)


def _free(node: Any, name: str) -> None:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == name:
                node[key] = True
            else:
                _free(value, name)


def _keys(node: Any) -> Any:
    if not isinstance(node, Mapping):
        return None
    if not node:
        return True
    keys = {str(key): _keys(value) for key, value in node.items() if key != "_target_"}
    if "_target_" in node:
        module, _, name = str(node["_target_"]).rpartition(".")
        _merge(keys, _fields(getattr(importlib.import_module(module), name)))
    return keys


def _fields(kind: Any, seen: tuple[type, ...] = ()) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    keys: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name.startswith("_"):
            continue
        keys[field.name] = _of_type(hints[field.name], (*seen, kind))
    return keys


def _of_type(hint: Any, seen: tuple[type, ...]) -> Any:
    for part in _parts(hint):
        if dataclasses.is_dataclass(part):
            return True if part in seen else _fields(part, seen)
    free = any((typing.get_origin(part) or part) in (dict, Mapping, Any) for part in _parts(hint))
    return True if free else None


def _parts(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def _merge(into: dict[str, Any], other: dict[str, Any]) -> None:
    """What is nested in either is nested; what is free in either and nested in none is free."""
    for key, value in other.items():
        present = into.get(key)
        if isinstance(present, dict) and isinstance(value, dict):
            _merge(present, value)
        elif key not in into or (not isinstance(present, dict) and value is not None):
            into[key] = value


def _sorted(node: Any) -> Any:
    return {k: _sorted(node[k]) for k in sorted(node)} if isinstance(node, dict) else node


if __name__ == "__main__":
    TARGET.write_text(json.dumps(known_keys(), indent=0) + "\n")
