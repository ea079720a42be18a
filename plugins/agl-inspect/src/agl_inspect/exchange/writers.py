"""Records to files: JSON lines or Parquet, whole or not at all."""

import contextlib
import json
import sys
from collections.abc import Callable, Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from agl.errors import ConfigError, install_line

ENDINGS = (".jsonl", ".parquet")
BATCH = 1000
"""Records that are held until they are written as one group of a Parquet file."""


Write = Callable[[Mapping[str, Any]], None]


@contextlib.contextmanager
def open_writer(out: Path | None, columns: Mapping[str, str]) -> Generator[Write]:
    """Write to a ``.jsonl`` or ``.parquet`` file, which appears when the block has ended well.

    Without ``out`` it writes JSON lines on standard output. ``columns`` are of a Parquet file, each
    with its kind, one of those in ``_arrow_types``. Another ending, a folder that is not there, and
    Parquet without pyarrow are a ``ConfigError``.
    """
    if out is None:
        yield partial(_write_line, sys.stdout)
        return
    if out.suffix not in ENDINGS:
        raise ConfigError(f"{out}: expected a name that ends in {' or '.join(ENDINGS)}")
    if not out.parent.is_dir():
        raise ConfigError(f"{out}: there is no folder {str(out.parent)!r}")
    part = out.with_name(f"{out.name}.part")
    try:
        if out.suffix == ".jsonl":
            with part.open("w", encoding="utf-8") as file:
                yield partial(_write_line, file)
        else:
            with _parquet(part, columns) as write:
                yield write
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)


def _write_line(file: TextIO, record: Mapping[str, Any]) -> None:
    file.write(json.dumps(record, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def _parquet(path: Path, columns: Mapping[str, str]) -> Generator[Write]:
    """Writes groups of rows of one schema; what has no fixed shape is JSON text in its column."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(
            f"{path.with_suffix('')}: writing Parquet needs 'pyarrow', which is not installed. "
            f"Run: {install_line('agl-inspect[parquet]')}, or write to a .jsonl file"
        ) from None
    types = _arrow_types(pyarrow)
    schema = pyarrow.schema([(name, types[kind]) for name, kind in columns.items()])
    batch: list[dict[str, Any]] = []

    def flush() -> None:
        if batch:
            file.write_table(pyarrow.Table.from_pylist(batch, schema))
            batch.clear()

    def write(record: Mapping[str, Any]) -> None:
        batch.append({name: _cell(record.get(name), kind) for name, kind in columns.items()})
        if len(batch) >= BATCH:
            flush()

    with parquet.ParquetWriter(path, schema) as file:
        yield write
        flush()


def _arrow_types(pyarrow: Any) -> dict[str, Any]:
    text, struct, many = pyarrow.string(), pyarrow.struct, pyarrow.list_
    origin = struct([("rollout_id", text), ("attempt_id", text), ("span_ids", many(text))])
    function = struct([("name", text), ("arguments", text)])
    tool_call = struct([("id", text), ("type", text), ("function", function)])
    texts = [(name, text) for name in _MESSAGE[:-1]]
    message = struct([*texts, ("tool_calls", many(tool_call)), ("more", text)])
    return {
        "text": text,
        "json": text,
        "number": pyarrow.float64(),
        "numbers": many(pyarrow.float64()),
        "ids": many(pyarrow.int64()),
        "texts": many(text),
        "messages": many(message),
        "origin": origin,
        "origins": struct([("chosen", origin), ("rejected", origin)]),
    }


_MESSAGE = ("role", "content", "reasoning_content", "name", "tool_call_id", "tool_calls")


def _cell(value: Any, kind: str) -> Any:
    if kind == "json" and value is not None:
        return json.dumps(value, ensure_ascii=False)
    if kind == "messages" and value is not None:
        return [_message(message) for message in value]
    return value


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message in columns: parts as JSON text, keys without a column as JSON under ``more``."""
    known = {name: message.get(name) for name in _MESSAGE}
    if known["content"] is not None and not isinstance(known["content"], str):
        known["content"] = json.dumps(known["content"], ensure_ascii=False)
    more = {key: value for key, value in message.items() if key not in _MESSAGE}
    return {**known, "more": json.dumps(more, ensure_ascii=False) if more else None}
