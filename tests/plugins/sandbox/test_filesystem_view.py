"""What of a project's files is hidden from agents."""

import pytest

from agl_sandbox.filesystem_view import private_paths


@pytest.mark.parametrize("started_as", [".venv", ".environments/one"])
def test_environment_behind_a_link_is_seen_by_both_names(tmp_path, started_as):
    for name in (".environments/one/bin", ".git"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / ".venv").symlink_to(".environments/one")
    assert private_paths([tmp_path, tmp_path / started_as], []) == [tmp_path / ".git"]
