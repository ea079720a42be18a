"""What ``agl serve`` refuses; that it serves until told to stop is a test in ``real``."""

import os
import subprocess
import sys

import pytest

from agl_http.server import bind

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-c", "from agl.cli import main; main()", "serve", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize(
    ("what", "says"),
    [("port", "is in use"), ("model", "there is no such folder"), ("0.0.0.0", "AGL_SERVE_API_KEY")],
)
def test_what_cannot_be_served_is_told_with_exit_code_2(tmp_path, what, says):
    with bind("127.0.0.1", 0) as sock:
        port = str(sock.getsockname()[1]) if what == "port" else "0"
        host = what if "." in what else "127.0.0.1"
        with start(str(tmp_path / "none"), "--host", host, "--port", port) as process:
            told = process.communicate()[1]
    assert process.returncode == 2
    assert says in told
