"""Datasets are read whole or refused with file and line."""

import sys

import pytest
from tests.refusals import refused

from agl.errors import DatasetError
from agl_runs.config.datasets import load_dataset

TOO_DEEP = "Stack overflow" if sys.version_info >= (3, 14) else "maximum recursion depth"
"""What Python says of JSON that is nested so deep."""


@pytest.mark.parametrize(
    ("name", "content", "tasks"),
    [
        ("a.json", '[1, {"x": "é"}]', [1, {"x": "é"}]),
        ("a.jsonl", '{"x": 1}\n\n"two"\n', [{"x": 1}, "two"]),
        ("a.ndjson", "1\n2", [1, 2]),
        ("a.JSONL", "\ufeff1\n", [1]),
        (
            "a.csv",
            'x,y\n1,"two, three"\n4,5\n',
            [{"x": "1", "y": "two, three"}, {"x": "4", "y": "5"}],
        ),
    ],
)
def test_text_formats_are_read(tmp_path, name, content, tasks):
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert load_dataset(tmp_path / name) == tasks


def test_parquet_is_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    tasks = [{"x": 1, "y": ["a"]}, {"x": 2, "y": []}]
    parquet.write_table(pyarrow.Table.from_pylist(tasks), tmp_path / "a.parquet")
    assert load_dataset(tmp_path / "a.parquet") == tasks


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.json", None, "missing.json: no such dataset file"),
        ("a.json", b"", "a.json, line 1: not JSON"),
        ("a.json", b"[]", "a.json: the dataset has no tasks"),
        ("a.jsonl", b"\n \n", "a.jsonl: the dataset has no tasks"),
        ("a.csv", b"x,y\n", "a.csv: the dataset has no tasks"),
        ("a.json", b'{"x": 1}', "a.json: expected an array of tasks, got an object"),
        ("a.json", b"[1,\n2,,]", "a.json, line 2: not JSON: "),
        ("a.json", b"1\n2\n", "name the file .jsonl"),
        ("a.jsonl", b'{"x": 1}\n{"x": \n', "a.jsonl, line 2: not JSON: "),
        ("a.jsonl", b"1\n" + b"[" * 100_000, f"a.jsonl, line 2: not JSON: {TOO_DEEP}"),
        ("a.jsonl", b"1\n" + b"9" * 9000, "a.jsonl, line 2: not JSON: Exceeds the limit"),
        ("a.json", b"[" * 100_000, f"a.json: not JSON: {TOO_DEEP}"),
        ("a.jsonl", b"\xff\xfe\x00", "a.jsonl: not UTF-8 text"),
        ("a.jsonl", b'[{"x": 1}, {"x": 2}]\n', "one line, which is an array of tasks. Name the f"),
        ("a.csv", b"x,y\n1,2\n3\n", "a.csv, line 3: expected 2 values, got 1"),
        ("a.csv", b"x,x\n1,2\n", "a.csv, line 1: a column name stands twice"),
        ("a.csv", b'x,y\n1,"2\n', "a.csv, line 2: not CSV: "),
        ("a.txt", b"1", "a.txt: cannot read '.txt'; a dataset is one of .json, .jsonl, "),
        ("a", b"1", "cannot read 'a file without an ending'"),
        ("a.parquet", b"PAR0 no", "a.parquet: not Parquet: "),
    ],
)
def test_wrong_files_are_refused_with_file_and_line(tmp_path, name, content, message):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with refused(DatasetError, message):
        load_dataset(tmp_path / name)


def test_folder_is_no_dataset(tmp_path):
    with pytest.raises(DatasetError, match="no such dataset file"):
        load_dataset(tmp_path)
