"""The JSON Schema of the file, over the components that are installed, for editors."""

import inspect
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import ConfigDict, PydanticUserError, TypeAdapter

from agl.errors import AglError
from agl.plugins.parts import PARTS
from agl.plugins.registry import GROUPS, components, load_component
from agl.plugins.schema import Option, schema_of
from agl_runs.config.file import RunConfig
from agl_runs.config.sides import SIDES
from agl_runs.options import Group

VARIABLE = {"type": "string", "pattern": r"\$\{\w+\}"}
"""In the place of any value, one of the environment."""
PATH = {"type": "string", "pattern": r"\w[:.]\w"}


def json_schema() -> dict[str, Any]:
    """Imports all components; one that does not load is left out."""
    definitions: dict[str, Any] = {}
    properties = {one.name: _option(one, definitions) for one in schema_of(RunConfig).options}
    for name in properties.keys() & {*GROUPS, "hooks", "runner"}:
        kind = _component(name.rstrip("s"), definitions)
        kind = {"type": "array", "items": kind} if name == "hooks" else kind
        properties[name] = {**kind, "description": properties[name]["description"]}
    about = {"title": "agl.yaml", "type": "object", "additionalProperties": False}
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, **about, "$defs": definitions, "properties": properties}


def _component(kind: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """A name, a path, or a block of type and options; without a type, those of the default."""
    blocks: dict[str, dict[str, Any]] = {}
    for component in components(GROUPS[kind]) if kind in GROUPS else ():
        try:
            schema = schema_of(load_component(component))
        except AglError:
            continue
        properties = {one.name: _option(one, definitions) for one in schema.options}
        properties["type"] = {"const": component.name}
        if kind in SIDES:
            properties["environment"] = {"type": "string"}
        about = {"type": "object", "required": ["type"]}  # the run gives some others
        about |= {"properties": properties, "additionalProperties": schema.open}
        blocks[component.name] = about
    other = {"type": "object", "properties": {"type": PATH}, "required": ["type"]}
    of_default = {"type": "object", "not": {"required": ["type"]}}
    named = [{"enum": [*blocks, None]}, PATH, VARIABLE, *blocks.values(), other]
    return {"anyOf": [*named, of_default] if kind in PARTS else named}


def _option(option: Option, definitions: dict[str, Any]) -> dict[str, Any]:
    config, ref = ConfigDict(arbitrary_types_allowed=True), f"{option.name}.{{model}}"
    try:
        adapter = TypeAdapter[Any](list[option.annotation], config=config)  # pyright: ignore
        made: Mapping[str, Any] = adapter.json_schema(ref_template=f"#/$defs/{ref}")
    except (PydanticUserError, NameError, TypeError):
        return {"description": option.doc}
    for name, one in made.get("$defs", {}).items():
        definitions[ref.format(model=name)] = one
    parts = (option.annotation, *get_args(option.annotation))
    is_group = any(inspect.isclass(one) and issubclass(one, Group) for one in parts)
    bare = [{"type": ["number", "string", "boolean", "null"]}] if is_group else []
    return {"anyOf": [made["items"], VARIABLE, *bare], "description": option.doc}
