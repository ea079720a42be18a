"""``agl serve``: a model on an address, until told to stop."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from agl.serving.server import bind

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-c", "from agl.cli import main; main()", "serve", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )


def ask(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=250) as answer:
        return json.loads(answer.read())


def test_it_answers_with_token_ids_and_its_version_until_it_is_told_to_stop(
    tmp_path, model, tokenizer
):
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    options = ("--port", "0", "--name", "mine", "--weights-version", "3", "--threads", "1")
    with start(str(tmp_path), *options) as process:
        try:
            line = next(line for line in process.stderr if "is served at" in line)
            url = line.split()[-1]
            answer = ask(
                f"{url}/chat/completions",
                {
                    "model": "mine",
                    "messages": [{"role": "user", "content": "one"}],
                    "max_tokens": 3,
                    "return_token_ids": True,
                },
            )
            assert answer["prompt_token_ids"] == [1, 7, 3, 2]
            assert 1 <= len(answer["choices"][0]["token_ids"]) <= 3
            assert answer["choices"][0]["weight_versions"][0]["version"] == "3"
            assert ask(f"{url}/models")["data"][0]["id"] == "mine"
        finally:
            process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + 30
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
        assert process.returncode == 0


@pytest.mark.parametrize(
    ("what", "says"),
    [("port", "is in use"), ("model", "cannot load the model"), ("0.0.0.0", "AGL_SERVE_API_KEY")],
)
def test_what_cannot_be_served_is_told_with_exit_code_2(tmp_path, what, says):
    with bind("127.0.0.1", 0) as sock:
        port = str(sock.getsockname()[1]) if what == "port" else "0"
        host = what if "." in what else "127.0.0.1"
        with start(str(tmp_path / "none"), "--host", host, "--port", port) as process:
            told = process.communicate()[1]
    assert process.returncode == 2
    assert says in told
