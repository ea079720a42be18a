"""What a killed run finds again: whole entries, whole versions, nothing else."""

import os
import subprocess
import sys

import pytest

from agl.errors import ConfigError
from agl_learning.journal import Journal
from agl_learning.versions import Version, publish, read_record, write_lines, write_record


def test_entries_are_found_again_and_a_torn_last_line_counts_as_not_written(tmp_path):
    with Journal(tmp_path) as journal:
        journal.append("collected", iteration=1, metrics={"a": 1})
        journal.append("trained", version=1)
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"event": "trained", "vers')
    with Journal(tmp_path) as journal:
        assert journal.last("trained") == {"event": "trained", "version": 1}
        assert journal.last("collected", iteration=2) is None
        assert journal.last("collected", iteration=1)["metrics"] == {"a": 1}
        journal.append("trained", version=2)
    with Journal(tmp_path) as journal:
        assert [entry["version"] for entry in journal.all("trained")] == [1, 2]


def test_a_folder_has_one_run_at_a_time_and_only_a_journal_is_taken_for_one(tmp_path):
    with Journal(tmp_path), pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"):
        Journal(tmp_path).__enter__()
    (tmp_path / "journal.jsonl").write_text("hello\n")
    with pytest.raises(ConfigError, match="line 1 is no JSON"):
        Journal(tmp_path).__enter__()


def test_a_forked_process_does_not_keep_the_folder(tmp_path):
    reading, writing = os.pipe()
    with Journal(tmp_path) as journal:
        journal.append("begun")
        child = os.fork()
        if child == 0:
            os.read(reading, 1)
            os._exit(0)
        with pytest.raises(ConfigError, match="in use"):  # still ours
            Journal(tmp_path).__enter__()
    with Journal(tmp_path) as journal:
        assert journal.last("begun")
    os.write(writing, b"x")
    assert os.waitpid(child, 0)[1] == 0
    os.close(reading)
    os.close(writing)


def test_an_entry_is_on_the_disk_when_append_returns(tmp_path):
    program = (
        "import os, sys; from pathlib import Path; from agl_learning.journal import Journal\n"
        "with Journal(Path(sys.argv[1])) as journal:\n"
        "    journal.append('trained', version=1)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert done.returncode == -9
    with Journal(tmp_path) as journal:
        assert journal.last("trained") == {"event": "trained", "version": 1}


def test_a_version_has_its_name_only_when_it_is_whole(tmp_path, monkeypatch):
    partial, folder = tmp_path / ".0001.partial-1", tmp_path / "0001"
    partial.mkdir()
    (partial / "model.safetensors").write_bytes(b"weights")
    version = Version(1, str(folder), {"loss/first": 2.0})
    write_record(partial, version)
    assert read_record(folder) is None
    synced = []
    real = os.fsync
    monkeypatch.setattr(
        os,
        "fsync",
        lambda number: (synced.append(os.readlink(f"/proc/self/fd/{number}")), real(number)),
    )
    publish(partial, folder)
    # Every file before its folder, both before the name, which is in the folder above.
    assert [path.rsplit("/", 1)[-1] for path in synced] == [
        "agl_version.json",
        "model.safetensors",
        ".0001.partial-1",
        tmp_path.name,
    ]
    assert read_record(folder) == version
    assert not partial.exists()


def test_a_version_that_is_there_is_not_replaced(tmp_path):
    for name, text in (("0001", "first"), (".0001.partial-2", "second")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_text(text)
    publish(tmp_path / ".0001.partial-2", tmp_path / "0001")
    assert (tmp_path / "0001/weights").read_text() == "first"


def test_lines_are_there_whole(tmp_path):
    write_lines(tmp_path / "new/examples.jsonl", [{"a": [1, 2]}, {"a": []}])
    assert (tmp_path / "new/examples.jsonl").read_text() == '{"a": [1, 2]}\n{"a": []}\n'
    assert os.listdir(tmp_path / "new") == ["examples.jsonl"]
