"""A training server in a process of its own, with a real run, and clients that are really there."""

import itertools
import json
import signal
import subprocess
import sys

import pytest
import requests

from agl_service import (
    Client,
    DataUploadError,
    InvalidConfigError,
    ServerConnectionError,
    TrainingError,
)

from .conftest import KEY, until
from .test_typescript import TRAINED, faulty


@pytest.mark.nightly
def test_ten_lines_train_through_a_killed_server(server, tmp_path):
    address = server.user("carl")
    client = Client(address)
    script = server.script(address, "15")
    until(lambda: client.jobs() and client.jobs()[0]["step"] >= 3, script)
    script.send_signal(signal.SIGINT)
    assert "client.attach(" in script.communicate()[1]
    assert script.returncode == -signal.SIGINT
    (job,) = client.jobs()
    script = server.script(address, "attach", job["id"])
    until(lambda: client.jobs()[0]["step"] >= 6, script)
    server.process.kill()
    server.process.wait()
    server.start()
    until(lambda: client.jobs()[0]["step"] >= 9, script)
    said, errors = script.communicate()
    assert script.returncode == 0, errors
    result = json.loads(said)
    assert result["total_steps"] == 15 == len(result["train_rewards"])
    assert result["test_rewards"][0] < 0.6 < 0.7 < result["test_rewards"][-1], result
    training, evaluation = client.jobs()
    assert (training["state"], training["id"]) == ("finished", result["job"])
    assert (evaluation["kind"], evaluation["state"]) == ("evaluate", "finished")
    assert result["evaluated"]["mean_reward"] == result["test_rewards"][-1]
    client.download_model(str(tmp_path / "trained"), result["checkpoints"][-1])
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(tmp_path / "trained").num_parameters()


SIGNAL_IN_THE_MIDDLE = """
import signal, threading
from agl.cli import main

class Event(threading.Event):
    def set(self):
        if threading.get_ident() == threading.main_thread().ident and not self.is_set():
            with self._cond:
                signal.raise_signal(signal.SIGTERM)
        super().set()

threading.Event = Event
main(["server", "start", "--model", "none", "--port", "0"])
"""


def test_a_second_signal_while_the_first_is_handled_is_no_deadlock(tmp_path):
    pytest.importorskip("agl_torch")
    log = tmp_path / "server.log"
    with log.open("w") as err:
        words = [sys.executable, "-c", SIGNAL_IN_THE_MIDDLE]
        process = subprocess.Popen(words, cwd=tmp_path, stderr=err)
    try:
        until(lambda: "agl server: " in log.read_text(), process)
        process.terminate()
        assert process.wait(30) == 0, log.read_text()
    finally:
        process.kill()


def test_what_is_wrong_is_said(server):
    assert Client(f"http://agl:{KEY}@127.0.0.1:{server.port}").jobs() == []
    client = Client(server.user("dora"))
    data = client.upload_data(str(server.folder / "train.jsonl"))
    wrong = {
        "no such": (DataUploadError, lambda: client.upload_data("nowhere.jsonl")),
        "epochs": (InvalidConfigError, lambda: client.train(print, epochs=0, data_id=data)),
        "optimum": (InvalidConfigError, lambda: client.download_model("x", format="onnx")),
        "train first": (TrainingError, lambda: client.download_model("x")),
        "nworkers=0": (InvalidConfigError, lambda: client.train(print, 0, data_id=data)),
        "got 5": (
            InvalidConfigError,
            lambda: client.evaluate(5, str(server.folder / "test.jsonl")),
        ),
        "which data": (InvalidConfigError, lambda: Client(server.user("dora")).train(print)),
        "AGENT_LIGHTNING_API_KEY": (
            ServerConnectionError,
            lambda: Client(f"http://127.0.0.1:{server.port}").jobs(),
        ),
        "agl server start": (
            ServerConnectionError,
            lambda: Client("http://127.0.0.1:1", max_retries=0).jobs(),
        ),
    }
    for said, (error, call) in wrong.items():
        with pytest.raises(error, match=said):
            call()
    assert client.jobs() == []
    answer = requests.post(f"{server.user('dora')}/data", data=itertools.repeat(bytes(2**20), 9))
    assert (answer.status_code, answer.json()["error_type"]) == (413, "BodyTooLarge")


def test_an_answer_that_breaks_off_is_no_answer_and_leaves_no_model(tmp_path):
    def reply(request, body):
        return 200, json.dumps([TRAINED]).encode() if request.path == "/jobs" else b"half"

    with faulty(reply, lambda path: 0 if path == "/jobs" else len(b"half") * 2) as address:
        client = Client(address)
        for call in (client.data, lambda: client.download_model(str(tmp_path))):
            with pytest.raises(ServerConnectionError, match="no whole one"):
                call()
    assert not (tmp_path / "model.safetensors").exists()
