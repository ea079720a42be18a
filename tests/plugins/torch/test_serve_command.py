"""What ``agl serve`` refuses; that it serves until told to stop is a test in ``real``."""

import pytest
from tests import fork_server

from agl_http.server import bind


@pytest.mark.parametrize(
    ("what", "says"),
    [("port", "is in use"), ("model", "there is no such folder"), ("0.0.0.0", "AGL_SERVE_API_KEY")],
)
def test_what_cannot_be_served_is_told_with_exit_code_2(tmp_path, what, says):
    with bind("127.0.0.1", 0) as sock:
        port = str(sock.getsockname()[1]) if what == "port" else "0"
        host = what if "." in what else "127.0.0.1"
        command = ["-c", "from agl.cli import main; main()", "serve", tmp_path / "none"]
        ended = fork_server.run([*command, "--host", host, "--port", port])
    assert ended.returncode == 2
    assert says in ended.stderr
