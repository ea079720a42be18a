"""What other programs recorded: rollouts with their calls, resources and rewards, as JSON.

A ``.json`` file holds one object with any of the lists ``rollouts``, ``resources`` and ``rewards``.
A ``.jsonl`` file has one object per line with one of the keys ``rollout``, ``resource`` and
``reward``, and is never in memory as a whole. Names may also be written ``inCamelCase``.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

from pydantic import AfterValidator, AllowInfNan, ConfigDict, TypeAdapter, ValidationError
from pydantic.alias_generators import to_snake

from agl.errors import ConfigError
from agl.plugins.schema import validate
from agl.types import RolloutMode, Span
from agl.utils.json_values import parse_json
from agl.utils.text import clean

Kind = Literal["rollout", "resource", "reward"]
OTHER_NAMES: dict[Kind, dict[str, str]] = {
    "rollout": {"rollout_id": "id"},
    "resource": {"resources_id": "id", "resource_type": "type"},
    "reward": {"reward": "value"},
}
"""Names that mean the same."""


STRICT = ConfigDict(extra="forbid")


def unix_seconds(instant: float) -> float:
    """An instant in seconds, recorded in these or in milli-, micro- or nanoseconds.

    Its size tells: read as seconds, the other ones would be in the year 5138 or later.
    """
    for unit in (1e9, 1e6, 1e3):
        if abs(instant) >= 1e8 * unit:
            return instant / unit
    return instant


Finite = Annotated[float, AllowInfNan(False)]
Instant = Annotated[Finite, AfterValidator(unix_seconds)]
"""Unix seconds, in whatever unit they were recorded."""


@dataclass(frozen=True)
class RecordedCall:
    """One request to a model."""

    __pydantic_config__ = STRICT

    messages: list[dict[str, Any]]
    """The request, as OpenAI chat messages."""
    response: str | dict[str, Any] | None = None
    """The answer: its text, or an OpenAI assistant message."""
    tools: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    model: str | None = None
    agent_name: str | None = None
    finish_reason: str | None = None
    prompt_token_ids: list[int] | None = None
    response_token_ids: list[int] | None = None
    response_logprobs: list[Finite] | None = None
    error: str | None = None
    start_time: Instant | None = None
    end_time: Instant | None = None


@dataclass(frozen=True)
class RecordedRollout:
    """One task that an agent did."""

    __pydantic_config__ = STRICT

    id: str
    input: Any = None
    """The task; rollouts with the same input are siblings."""
    output: str | None = None
    """The answer to ``input``, where that is a text and nothing else was recorded."""
    messages: list[dict[str, Any]] | None = None
    """The whole conversation; each assistant message is a call with those before it."""
    calls: list[RecordedCall] | None = None
    spans: list[Span] | None = None
    """As ``agl spans ROLLOUT --json`` writes them."""
    status: Literal["succeeded", "failed"] = "succeeded"
    error: str | None = None
    mode: RolloutMode | None = None
    resources_id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    start_time: Instant | None = None


@dataclass(frozen=True)
class RecordedResource:
    """A prompt or a model: a single one with ``name`` and ``type``, or a snapshot of several."""

    __pydantic_config__ = STRICT

    id: str | None = None
    """Of the snapshot; single resources without one are a snapshot together."""
    resources: dict[str, dict[str, Any]] | None = None
    """Name -> ``type`` and the fields of that resource."""
    name: str | None = None
    type: str | None = None
    template: str | None = None
    engine: str | None = None
    endpoint: str | None = None
    model: str | None = None
    sampling_parameters: dict[str, Any] | None = None

    def named(self) -> dict[str, dict[str, Any]]:
        """Name -> type and fields."""
        if self.resources is not None:
            return self.resources
        names = ("type", "template", "engine", "endpoint", "model", "sampling_parameters")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {self.name or "": given}


@dataclass(frozen=True)
class RecordedReward:
    """How well a rollout did, or one call of it."""

    __pydantic_config__ = STRICT

    rollout_id: str
    value: Finite
    call: int | None = None
    """The reward is for this call, from 0; None for the whole."""
    name: str | None = None
    comment: str | None = None


FileRecord = RecordedRollout | RecordedResource | RecordedReward
KINDS: dict[Kind, type[FileRecord]] = {
    "rollout": RecordedRollout,
    "resource": RecordedResource,
    "reward": RecordedReward,
}


def checked(kind: Kind, values: Mapping[str, Any], where: str) -> FileRecord:
    """A record of a file; a ``ConfigError`` that begins with ``where`` if it is none."""
    try:
        found = _adapter(kind).validate_python(values)
    except ValidationError:
        # It reads the fields' docs out of the source, for its messages: too slow for each line.
        found = KINDS[kind](**validate(KINDS[kind], values, where))
    if isinstance(found, RecordedResource) and (found.resources is None) == (found.name is None):
        raise ConfigError(f"{where}: expected 'resources', or 'name' and 'type'")
    if isinstance(found, RecordedRollout):
        sources = ("output", "messages", "calls", "spans")
        given = [name for name in sources if getattr(found, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"{where}: {' and '.join(given)} say the same; give one of them")
        if found.output is not None and not isinstance(found.input, str):
            raise ConfigError(
                f"{where}: 'output' needs an 'input' that is the text which the model was given; "
                f"got {_kind_of(found.input)}. Give 'messages' in its place"
            )
    return found


@cache
def _adapter(kind: Kind) -> TypeAdapter[FileRecord]:
    return TypeAdapter(KINDS[kind])


def read_records(path: Path) -> Iterator[tuple[str, FileRecord]]:
    """The records of a file, each with where it stands, as a ``ConfigError`` says it, too."""
    if path.suffix.lower() == ".json":
        with text_of(path) as file:
            whole = parse(file.read(), str(path))
        unknown = whole.keys() - {f"{kind}s" for kind in KINDS}
        if unknown or not whole:
            raise ConfigError(
                f"{path}: expected an object with 'rollouts', 'resources' or 'rewards', or OTLP "
                f"with 'resourceSpans'; got the keys {sorted(whole)}"
            )
        for kind in KINDS:
            values = whole.get(f"{kind}s", [])
            if not isinstance(values, list):
                raise ConfigError(f"{path}: {kind}s: expected a list, got {_kind_of(values)}")
            for number, value in enumerate(values):
                where = f"{path}: {kind}s[{number}]"
                yield where, _record(kind, value, where)
        return
    for where, line in each_line(path):
        value = parse(line, where)
        found: list[Kind] = [kind for kind in KINDS if kind in value]
        if len(value) != 1 or not found:
            raise ConfigError(
                f"{where}: expected one of the keys {', '.join(KINDS)}; got {sorted(value)}"
            )
        at = f"{where}: {found[0]}"
        yield at, _record(found[0], value[found[0]], at)


def each_line(path: Path) -> Iterator[tuple[str, str]]:
    """The lines that are not blank, each with where it stands."""
    with text_of(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield f"{path}, line {number}", line


@contextmanager
def text_of(path: Path) -> Iterator[TextIO]:
    """The file, open to read; a ``ConfigError`` if it is no text, as it is packed, say."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            yield file
    except UnicodeDecodeError as error:
        what = f"{error.reason} (0x{error.object[error.start]:02x})"
        raise ConfigError(f"{path}: not text in UTF-8: {what}. Unpack it first") from None


def objects_of(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file, one a line, a list of them, or one, each with where it stands.

    Anything else is a ``ConfigError``.
    """
    if path.suffix.lower() != ".json":
        for where, line in each_line(path):
            yield where, parse(line, where)
        return
    with text_of(path) as file:
        value = parse_any(file.read(), str(path))
    for number, item in enumerate(value) if isinstance(value, list) else [(None, value)]:
        where = str(path) if number is None else f"{path}: [{number}]"
        yield where, as_object(item, where)


def parse(text: str, where: str) -> dict[str, Any]:
    """An object out of JSON; errors as in ``parse_any``."""
    return as_object(parse_any(text, where), where)


def as_object(value: Any, where: str) -> dict[str, Any]:
    """The value, if it is an object; else a ``ConfigError``."""
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected an object, got {_kind_of(value)}")
    return value


def parse_any(text: str, where: str) -> Any:
    """What JSON says; a ``ConfigError`` for what is none."""
    try:
        value = parse_json(text)
        if "\\ud" in text.lower():  # perhaps half a character, which no store can hold
            value = parse_json(clean(json.dumps(value, ensure_ascii=False)))
    except json.JSONDecodeError as error:
        at = f", line {error.lineno}" if "\n" in text.strip() else ""
        raise ConfigError(f"{where}{at}: not JSON: {error.msg}") from None
    except ValueError as error:  # too deep, or a number of too many digits
        raise ConfigError(f"{where}: cannot be read: {error}") from None
    return value


@contextmanager
def errors_at(where: str, form: str) -> Iterator[None]:
    """Turn what reading a wrong form raises into a ``ConfigError`` that names the place."""
    try:
        yield
    except ConfigError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ConfigError(
            f"{where}: expected {form}; got one that cannot be read: {type(error).__name__}: "
            f"{error}"
        ) from None


def seconds_of(instant: Any) -> float | None:
    """Unix seconds of an instant: ISO 8601, or a number in the unit that its size tells."""
    if isinstance(instant, str):
        return datetime.fromisoformat(instant).timestamp()
    return None if instant is None else unix_seconds(float(instant))


def _record(kind: Kind, value: Any, where: str) -> FileRecord:
    names = OTHER_NAMES[kind]
    values = {
        names.get(name, name): item
        for key, item in as_object(value, where).items()
        for name in [to_snake(key)]
    }
    if isinstance(values.get("calls"), list):
        values["calls"] = [
            {to_snake(key): item for key, item in call.items()} if isinstance(call, dict) else call
            for call in values["calls"]
        ]
    return checked(kind, values, where)


def _kind_of(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", type(None): "nothing"}
    return kinds.get(type(value), repr(value))
