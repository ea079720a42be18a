"""What a killed run finds again: whole notes, records of what it collected, nothing else."""

from dataclasses import asdict

import pytest
from tests.interpreter import python

import agl
from agl.errors import ConfigError
from agl.types import Document
from agl_learning.run.folder import Generation
from agl_learning.run.notes import Notes
from agl_learning.run.records import Record, Records


def test_notes_are_found_again_and_a_torn_last_one_counts_as_not_written(tmp_path):
    notes = Notes(tmp_path)
    notes.append("job", version=1, round=0)
    with notes.path.open("a") as file:
        file.write('{"event": "job", "vers')
    notes = Notes(tmp_path)
    assert notes.last("job") == {"event": "job", "version": 1, "round": 0}
    assert notes.last("job", version=2) is None
    notes.append("job", version=2)
    assert [note["version"] for note in Notes(tmp_path).all("job")] == [1, 2]
    notes.path.write_text("{\n" + notes.path.read_text())
    with pytest.raises(agl.errors.ConfigError, match=r"notes.jsonl: .*put it back from a copy"):
        Notes(tmp_path)


def test_a_note_for_which_there_is_no_space_is_not_there_at_all(tmp_path):
    resource = pytest.importorskip("resource")
    notes = Notes(tmp_path)
    notes.append("job", version=1)
    size = notes.path.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large|no space left"):
            notes.append("job", version=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    notes.append("job", version=3)
    assert [note["version"] for note in Notes(tmp_path).all("job")] == [1, 3]


def test_a_note_is_on_the_disk_when_append_returns(tmp_path):
    program = (
        "import os, sys; from pathlib import Path; from agl_learning.run.notes import Notes\n"
        "Notes(Path(sys.argv[1])).append('job', version=1)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert python("-c", program, tmp_path).returncode == -9
    assert Notes(tmp_path).last("job") == {"event": "job", "version": 1}


async def test_what_is_drawn_anew_has_other_keys_and_no_records(memory_store):
    async def records(run: str, number: int, after: int = 0) -> Records:
        found = Records(memory_store, "grpo", Generation(run, number))
        await found.read(after)
        return found

    first = await records("a", 1)
    for after in range(3):
        await first.put("train", after, Record(0, [(0, f"ro-{after}")], [], 1.0, 1, 1))
        await first.done("train", after, {"step": after + 1}, weights=f"{after}")
    second = await records("a", 2)
    assert second.find("train", 2).rollouts == [(0, "ro-2")]
    assert [*second.steps()] == [1, 2, 3]
    before = {after: second.key("train", after) for after in range(3)}
    await second.redraw("train", 1)
    third = await records("a", 3)
    assert third.find("train", 0).weights == "0"
    assert third.find("train", 1) is third.find("train", 2) is None
    assert [one["step"] for one in third.metrics()] == [1]
    changed = [third.key("train", after) != key for after, key in before.items()]
    assert changed == [False, True, True]
    assert (third.round("val", 1), third.round("val", 2)) == (0, 1)
    later = await records("a", 3, after=2)
    assert later.find("train", 0) is None  # not read
    assert (await records("b", 1)).steps() == {}


async def test_a_record_of_another_version_is_named(memory_store):
    body = {**asdict(Record(0, [], [], 1.0, 0, 0)), "of_later": 1}
    document = Document(kind="step", key=f"a/{1:012d}", body=body, version=1)
    await memory_store.put_documents([document])
    words = r"record 'a/000000000001' is not of this version of agl-learning .*'of_later'"
    with pytest.raises(ConfigError, match=words):
        await Records(memory_store, "grpo", Generation("a", 1)).read()


async def test_a_store_without_documents_has_no_records():
    class Old(agl.InMemoryLightningStore):
        async def query_documents(self, *args, **options):
            raise agl.errors.NotSupportedError("of 0.3")

        put_documents = query_documents

    records = Records(Old(), "grpo", Generation("a", 1))
    await records.read()
    await records.put("train", 0, Record(0, [], [], 1.0, 0, 0))
