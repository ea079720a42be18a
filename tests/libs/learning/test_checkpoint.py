"""Checkpoints are whole and as they were written, or they are not taken."""

import os

import pytest

from agl.errors import AlgorithmError
from agl_learning.checkpoint import MANIFEST, damage, making, read_note


def make(folder, text="weights", **note):
    with making(folder, note) as partial:
        (partial / "model.safetensors").write_text(text)
        (partial / "more").mkdir()
        (partial / "more/tokenizer.json").write_text("{}")
    return folder


def test_a_checkpoint_has_its_name_only_when_it_is_whole(tmp_path, monkeypatch):
    folder, synced = tmp_path / "0001", []
    real = os.fsync
    monkeypatch.setattr(
        os,
        "fsync",
        lambda number: (synced.append(os.readlink(f"/proc/self/fd/{number}")), real(number)),
    )
    note = {}
    with making(folder, note) as partial:
        (partial / "model.safetensors").write_bytes(b"weights")
        note["loss"] = 2.0  # known only now
        assert not folder.exists()
    # Every file before its folder, both before the name, which is in the folder above.
    assert [path.rsplit("/", 1)[-1] for path in synced] == [
        MANIFEST,
        "model.safetensors",
        partial.name,
        tmp_path.name,
    ]
    assert read_note(folder) == {"loss": 2.0}
    assert damage(folder) == ""
    assert not partial.exists()


def test_what_fails_in_the_middle_leaves_the_one_before(tmp_path):
    folder = make(tmp_path / "0001", "first")

    def fail():
        with making(folder, {}) as partial:
            (partial / "model.safetensors").write_text("second")
            raise OSError("disk is full")

    words = r"0001' could not be written, with \d+\.\d MB left on its disk: OSError: disk is full"
    with pytest.raises(AlgorithmError, match=words):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["0001"]
    assert (folder / "model.safetensors").read_text() == "first"
    assert damage(folder) == ""
    assert make(folder, "third") == folder
    assert (folder / "model.safetensors").read_text() == "third"


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("model.safetensors", lambda path: path.write_text("weighty"), "is not what was written"),
        (
            "model.safetensors",
            lambda path: path.write_text("w"),
            "has 1 bytes; it was written with 7",
        ),
        ("more/tokenizer.json", lambda path: path.unlink(), "more/tokenizer.json is missing"),
        (MANIFEST, lambda path: path.unlink(), "checkpoint.json is missing"),
        (MANIFEST, lambda path: path.write_text("[]"), "checkpoint.json cannot be read"),
        (MANIFEST, lambda path: path.write_text('{"files": []}'), "checkpoint.json cannot be read"),
        (
            MANIFEST,
            lambda path: path.write_text(path.read_text().replace('"step": 3', '"step": 1')),
            "checkpoint.json is not what was written",
        ),
    ],
)
def test_damage_is_named(tmp_path, name, change, why):
    folder = make(tmp_path / "0001", step=3)
    change(folder / name)
    assert why in damage(folder)
