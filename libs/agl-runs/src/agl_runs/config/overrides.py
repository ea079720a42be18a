"""Values from YAML files that lie over each other, and ``key=value`` overrides on top of them."""

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from agl.errors import AglError, ConfigError
from agl.plugins.build import find_target
from agl.plugins.parts import PARTS
from agl.plugins.registry import GROUPS
from agl.plugins.schema import schema_of
from agl.utils.logs import tell

Layers = Sequence[tuple[Path, dict[str, Any]]]
"""Files with what they say; later ones win."""
_NUMBER = re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$")


def parse_yaml(text: str, name: str) -> Any:
    """Parse YAML 1.1; ``name`` is what it is, for messages.

    With two differences: a key that stands twice in a block is refused, and ``1e-6`` is a number,
    as in YAML 1.2.

    Raises:
        ConfigError: It is not YAML; the message has the line.
    """
    import yaml

    try:
        return yaml.load(text, _loader())
    except RecursionError:
        raise ConfigError(f"{name}: not YAML that can be read: it is nested too deep") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f", line {mark.line + 1}" if mark else ""
        is_variable = mark is not None and "${" in f"{text}\n".split("\n")[mark.line]
        hint = ". Within {...} and [...], put ${NAME} in quotes" if is_variable else ""
        raise ConfigError(f"{name}{line}: not YAML: {error.problem}{hint}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: not YAML: {' '.join(str(error).split())}") from None


def read(path: Path) -> dict[str, Any]:
    """The keys and values of a file; a ``ConfigError`` if it has something else."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    values = parse_yaml(text, path.name)
    if not isinstance(values, dict):
        raise ConfigError(f"{path.name}: expected keys and values, got {values!r}")
    return cast("dict[str, Any]", values)


def read_layers(path: Path, words: Sequence[str]) -> tuple[Layers, list[str]]:
    """A file and those that ``words`` name, and the other words, which are overrides."""
    names = [one for one in words if "=" not in one and one.endswith((".yaml", ".yml"))]
    layers = [(one, read(one)) for one in (path, *map(Path, names))]
    return layers, [one for one in words if one not in names]


def lay_over(below: Any, above: Any) -> Any:
    """What two layers come to: blocks are merged, but those of another type."""
    if not isinstance(above, dict):
        return above
    block = {"type": below} if isinstance(below, str) else below
    old = cast("dict[str, Any]", block if isinstance(block, dict) else {})
    new = cast("dict[str, Any]", above)
    if new.get("type", old.get("type")) != old.get("type"):
        old = {}
    return {**old, **{name: lay_over(old.get(name), value) for name, value in new.items()}}


@contextmanager
def naming(layers: Layers) -> Generator[None]:
    """Have an error about a key begin with the last file that has it, or the block around it."""
    try:
        yield
    except AglError as error:
        start = f"{layers[0][0].name}: "
        address = re.split(r"[^\w.-]", str(error).removeprefix(start))[0].rstrip(".")
        while address:
            for path, values in reversed(layers):
                if address in _addresses(values):
                    error.args = (str(error).replace(start, f"{path.name}: ", 1),)
                    raise
            address = address.rpartition(".")[0]
        raise


def _addresses(values: Any, above: str = "") -> Iterator[str]:
    if isinstance(values, Mapping):
        for name, value in cast("Mapping[str, Any]", values).items():
            yield f"{above}{name}"
            yield from _addresses(value, f"{above}{name}.")


def part_with(option: str, given: Mapping[str, Any]) -> str | None:
    """The first part of a run that has this option, of those that are given or by default."""
    for name in (*PARTS, "environment"):
        spec, default = given.get(name), PARTS[name].default if name in PARTS else None
        kind = cast(Any, spec).get("type") if isinstance(spec, Mapping) else spec
        with suppress(AglError, TypeError):  # what is none has no options
            target, _ = find_target(kind or default, GROUPS.get(name))
            if any(one.name == option for one in schema_of(target).options):
                return name
    return None


def apply_overrides(values: dict[str, Any], overrides: Sequence[str]) -> None:
    """Change ``values`` in place.

    Args:
        values: Nested dicts and lists, as parsed.
        overrides: ``key=value`` each; dots lead into blocks, numbers into lists, and the value is
            YAML. A component given by its name alone becomes a block: ``algorithm.beam_width=4``
            turns ``algorithm: apo`` into ``algorithm: {type: apo, beam_width: 4}``; a bare value of
            a group of options stays that of its first. Another type drops the options of the former
            one, and says so on standard error.

    Raises:
        ConfigError: One has no ``=``, no YAML value, or leads nowhere.
    """
    done: list[str] = []
    for override in overrides:
        dotted, equals, text = override.partition("=")
        parts = dotted.strip().split(".")
        for earlier in done:
            if earlier.startswith(dotted.strip() + "."):
                raise ConfigError(
                    f"{override!r} replaces what {earlier!r} has set before; give it first"
                )
        done.append(override)
        if not equals or not all(parts):
            raise ConfigError(f"{override!r}: expected key=value, as in algorithm.beam_width=4")
        block: Any = values
        for part, following in pairwise(parts):
            at = _place(block, part, override)
            inner: Any = None if isinstance(at, str) and at not in block else block[at]
            if inner is None:
                inner = {}
            elif isinstance(inner, str):
                inner = {"type": inner}
            elif block is not values and not isinstance(inner, dict | list):
                inner = {"": inner}  # of a group of options, see ``agl_runs.options.Group``
            elif not isinstance(inner, dict | list):
                raise ConfigError(f"{override!r}: {part!r} is {inner!r} and has no {following!r}")
            block[at] = inner
            block = cast("Any", inner)
        at, value = _place(block, parts[-1], override), parse_yaml(text, override)
        if at == "type" and block.get(at) not in (None, value):
            of, left = block.pop("type"), ", ".join(block)
            if left:
                tell(f"{override}: left out, as options of {of!r}: {left}")
            block.clear()
        block[at] = value


def _place(block: Any, part: str, override: str) -> str | int:
    """What ``part`` is in this block: a key, or the position in a list."""
    if isinstance(block, dict):
        return part
    if not part.isdigit() or int(part) >= len(block):
        raise ConfigError(
            f"{override!r}: {part!r} is no position in a list of {len(block)}; the first is 0"
        )
    return int(part)


def _loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key_node, _ in node.value:
                if isinstance(key_node.value, str) and key_node.value in seen:
                    problem = f"key {key_node.value!r} stands twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
                if isinstance(key_node.value, str):
                    seen.add(key_node.value)
            return super().construct_mapping(node, deep)

    add: Any = cast("Any", Loader).add_implicit_resolver
    add("tag:yaml.org,2002:float", _NUMBER, list("-+0123456789"))
    return Loader
