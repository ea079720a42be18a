"""What a killed run finds again: whole entries, whole versions, nothing else."""

import os
import subprocess
import sys

import pytest

from agl.errors import ConfigError
from agl_learning.reports.json_lines import write_lines
from agl_learning.run.journal import Journal, read_entries


def test_entries_are_found_again_and_a_torn_last_line_counts_as_not_written(tmp_path, caplog):
    with Journal(tmp_path) as journal:
        journal.append("collected", iteration=1, metrics={"a": 1})
        journal.append("trained", version=1)
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"event": "trained", "vers')
    assert len(read_entries(tmp_path)) == 2
    assert "journal.jsonl: its last line is cut off" in caplog.text
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
    with pytest.raises(ConfigError, match="line 1 is damaged: b'hello"):
        Journal(tmp_path).__enter__()


@pytest.mark.parametrize("line", [b'{"event": "trai\n', b"\x00\x00\n", b"[1]\n", b'{"step": 1}\n'])
def test_a_damaged_line_in_the_middle_is_named_and_left_as_it_is(tmp_path, line):
    with Journal(tmp_path) as journal:
        journal.append("begun")
    path = tmp_path / "journal.jsonl"
    path.write_bytes(damaged := path.read_bytes() + line + b'{"event": "trained"}\n')
    for look in (read_entries, lambda folder: Journal(folder).__enter__()):
        with pytest.raises(ConfigError, match=r"line 2 is damaged: .*keep the first 1 lines"):
            look(tmp_path)
    assert path.read_bytes() == damaged


def test_an_entry_for_which_there_is_no_space_is_not_there_at_all(tmp_path):
    resource = pytest.importorskip("resource")
    with Journal(tmp_path) as journal:
        journal.append("begun")
        size = journal.path.stat().st_size
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                journal.append("trained", step=1)
            assert journal.path.stat().st_size == size
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert journal.last("trained") is None
        journal.append("trained", step=2)
    assert [entry.get("step") for entry in read_entries(tmp_path)] == [None, 2]


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
        "import os, sys; from pathlib import Path; from agl_learning.run.journal import Journal\n"
        "with Journal(Path(sys.argv[1])) as journal:\n"
        "    journal.append('trained', version=1)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert done.returncode == -9
    with Journal(tmp_path) as journal:
        assert journal.last("trained") == {"event": "trained", "version": 1}


def test_lines_are_there_whole(tmp_path):
    write_lines(tmp_path / "new/examples.jsonl", [{"a": [1, 2]}, {"a": []}])
    assert (tmp_path / "new/examples.jsonl").read_text() == '{"a": [1, 2]}\n{"a": []}\n'
    assert os.listdir(tmp_path / "new") == ["examples.jsonl"]


def test_one_key_is_found_without_a_look_at_the_others(tmp_path):
    compared = []

    class Key(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):
            compared.append(other)
            return str.__eq__(self, other)

    with Journal(tmp_path) as journal:
        for number in range(50):
            journal.append("collected", key=Key(f"step-{number}"))
        compared.clear()
        assert journal.last("collected", key="step-7") == {"event": "collected", "key": "step-7"}
    assert len(compared) < 5
