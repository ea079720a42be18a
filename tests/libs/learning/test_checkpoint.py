"""Checkpoints are whole, or they are not taken."""

import os
import shutil

import pytest

from agl.errors import AlgorithmError, ConfigError
from agl_learning.run.checkpoint import (
    MANIFEST,
    Progress,
    best_checkpoint,
    damage,
    find_checkpoint,
    making,
    read_note,
    remove_older,
    set_aside,
)


def make(folder, text="weights", **note):
    with making(folder, note) as partial:
        (partial / "model.safetensors").write_text(text)
        (partial / "more").mkdir()
        (partial / "more/tokenizer.json").write_text("{}")
    return folder


def test_a_checkpoint_has_its_name_only_when_it_is_whole(tmp_path, monkeypatch):
    folder, synced = tmp_path / "0001", []
    real, note = os.fsync, {}

    def fsync(number):
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{number}")))
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    with making(folder, note) as partial:
        (partial / "model.safetensors").write_bytes(b"weights")
        note["loss"] = 2.0  # known only now
        assert not folder.exists()
    # Every file before its folder, both before the name, which is in the folder above.
    assert synced == [MANIFEST, "model.safetensors", partial.name, tmp_path.name]
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
    killed = AlgorithmError("the training ended with exit code 137: out of memory?")
    with pytest.raises(AlgorithmError) as caught, making(folder, {}):
        raise killed
    assert caught.value is killed
    assert make(folder, "third") == folder
    assert (folder / "model.safetensors").read_text() == "third"


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("model.safetensors", lambda path: path.write_text("w"), "has 1 bytes; it was written wi"),
        ("more/tokenizer.json", lambda path: path.unlink(), "more/tokenizer.json is missing"),
        (MANIFEST, lambda path: path.unlink(), "checkpoint.json is missing"),
        (MANIFEST, lambda path: path.write_text("[]"), "checkpoint.json cannot be read"),
        (MANIFEST, lambda path: path.write_text('{"files": []}'), "checkpoint.json cannot be read"),
        (MANIFEST, lambda path: os.truncate(path, 20), "checkpoint.json cannot be read"),
    ],
)
def test_damage_is_named(tmp_path, name, change, why):
    folder = make(tmp_path / "0001", step=3)
    change(folder / name)
    assert why in damage(folder)


def test_people_may_write_in_the_card_of_a_model(tmp_path):
    with making(tmp_path / "0001", {}) as partial:
        (partial / "README.md").write_text("# A model")
    (tmp_path / "0001/README.md").write_text("# A model\n\nlicense: mit")
    assert damage(tmp_path / "0001") == ""


def test_a_damaged_one_is_named_and_the_one_before_it_is_used(tmp_path, caplog):
    save_steps(tmp_path, 2, 10)
    (tmp_path / "checkpoints/.step-000012.partial").mkdir()
    newest = find_checkpoint(tmp_path)
    assert newest.name == "step-000010"
    os.truncate(newest / "model.safetensors", 1)
    assert find_checkpoint(tmp_path).name == "step-000002"
    assert f"{newest} is damaged" in caplog.text
    with pytest.raises(ConfigError, match=r"step-000010.*has 1 bytes; it was written with 2"):
        find_checkpoint(newest)
    with pytest.raises(ConfigError, match="no checkpoint to resume from"):
        find_checkpoint(tmp_path / "nowhere")


def save_steps(root, *steps):
    for step in steps:
        with making(root / f"checkpoints/step-{step:06d}", Progress(step, step)) as at:
            (at / "model.safetensors").write_text(f"{step}")


def steps_of(root):
    return sorted(int(path.name.removeprefix("step-")) for path in root.glob("checkpoints/step-*"))


@pytest.mark.parametrize(
    ("keep_last", "val_rewards", "kept", "best"),
    [
        (1, [], [5], None),
        (3, [], [3, 4, 5], None),
        (9, [(2, 0.5)], [1, 2, 3, 4, 5], 2),
        (2, [(0, 0.9), (1, 0.5), (2, 0.7), (3, 0.6)], [2, 4, 5], 2),
        (1, [(1, None), (2, 0.7), (3, 0.7)], [3, 5], 3),  # of equal ones the newest
        (1, [(2, 0.1), (5, 0.7)], [5], 5),
    ],
)
def test_the_newest_and_the_best_are_kept(tmp_path, keep_last, val_rewards, kept, best):
    save_steps(tmp_path, 1, 2, 3, 4, 5)
    remove_older(tmp_path, keep_last, val_rewards)
    assert steps_of(tmp_path) == kept
    found = best_checkpoint(tmp_path, val_rewards)
    assert (found and int(found[0].name[-6:])) == best
    assert find_checkpoint(tmp_path).name == "step-000005"
    assert len([*(tmp_path / "checkpoints").iterdir()]) == len(kept)


def test_a_damaged_one_is_neither_the_best_nor_among_those_that_are_kept(tmp_path, caplog):
    save_steps(tmp_path, 1, 2, 3, 4, 5)
    for step in (2, 4):
        os.truncate(tmp_path / f"checkpoints/step-00000{step}/model.safetensors", 0)
    rewards = [(1, 0.5), (2, 0.9), (3, 0.1), (5, 0.2)]
    assert best_checkpoint(tmp_path, rewards) == (tmp_path / "checkpoints/step-000001", 0.5)
    remove_older(tmp_path, 2, rewards)
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5]
    remove_older(tmp_path, 1, rewards)
    assert steps_of(tmp_path) == [1, 2, 4, 5]
    assert caplog.text.count("is damaged and is left out") == 2  # each is named once


def test_what_the_run_went_back_behind_is_set_aside(tmp_path):
    save_steps(tmp_path, 1, 2, 3)
    for _ in range(2):
        set_aside(tmp_path, 2)
        save_steps(tmp_path, 3)
    assert steps_of(tmp_path) == [1, 2, 3]
    aside = sorted(path.name for path in (tmp_path / "checkpoints").glob("aside-*"))
    assert aside == ["aside-1-step-000003", "aside-2-step-000003"]


def test_a_copy_that_somebody_made_is_nobody_else_s(tmp_path):
    save_steps(tmp_path, 1, 999_999, 1_000_000)
    copies = [tmp_path / "checkpoints" / name for name in ("step-000001-mine", "step-9999999x")]
    for copy in copies:
        shutil.copytree(tmp_path / "checkpoints/step-000001", copy)
    assert find_checkpoint(tmp_path).name == "step-1000000"
    set_aside(tmp_path, 999_999)
    assert find_checkpoint(tmp_path).name == "step-999999"
    remove_older(tmp_path, 1, [])
    left = {path.name for path in tmp_path.glob("checkpoints/step-*")}
    assert left == {"step-999999", *(copy.name for copy in copies)}


@pytest.mark.parametrize("at", ["before", "within"])
def test_a_kill_while_one_is_removed_leaves_none_in_part(tmp_path, monkeypatch, caplog, at):
    save_steps(tmp_path, 1, 2, 3)
    real = shutil.rmtree

    def killed(path, **options):
        if at == "within":
            (path / "model.safetensors").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        remove_older(tmp_path, 1, [])
    monkeypatch.setattr(shutil, "rmtree", real)
    assert steps_of(tmp_path) == [3]
    assert find_checkpoint(tmp_path).name == "step-000003"
    assert not caplog.records
    save_steps(tmp_path, 4)
    remove_older(tmp_path, 1, [])
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000004"]
