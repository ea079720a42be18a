"""Files that a full disk or a kill leaves as they were."""

import re
from pathlib import Path

import pytest
from tests.interpreter import python

from agl.errors import ConfigError
from agl_runs.files import make_private_folder

FULL = """
import resource, signal, sys
from pathlib import Path

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
{setup}
resource.setrlimit(resource.RLIMIT_FSIZE, (4, resource.RLIM_INFINITY))
try:
    {act}
except OSError as error:
    print(error.strerror)
"""


def on_a_full_disk(act, setup=""):
    """What the system says to a statement that writes more than 4 bytes."""
    code = FULL.format(act=act, setup=setup)
    return python("-c", code, check=True).stdout


def test_a_whole_file_is_as_it_was_where_the_new_one_does_not_fit(tmp_path):
    path = tmp_path / "note.json"
    path.write_text('{"a": 1}')
    setup = "from agl_runs.files import write_whole"
    assert "large" in on_a_full_disk(f"write_whole(Path({str(path)!r}), 'x' * 99)", setup)
    assert path.read_text() == '{"a": 1}'


def test_a_folder_that_may_not_be_made_is_named_with_what_to_do(tmp_path, monkeypatch):
    def refuse(path, *args, **options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)  # root may make any
    with pytest.raises(ConfigError, match=re.escape(f"'{tmp_path}/runs': this folder cannot")):
        make_private_folder(tmp_path / "runs" / "a")
