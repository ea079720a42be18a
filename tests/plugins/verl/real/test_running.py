"""``running`` by itself; nothing of Ray is started."""

import os
import signal
import subprocess
import time
import uuid

import running


def test_a_process_that_outlives_its_run_is_seen_and_ended(monkeypatch):
    monkeypatch.setattr(running, "GRACE_SECONDS", 0.0)
    mark = uuid.uuid4().hex
    given = {"env": os.environ | {running.MARK: mark}, "start_new_session": True}
    orphan = subprocess.Popen(["sleep", "600"], **given)
    while not running.marked(mark):  # /proc shows its environment a little later
        time.sleep(0.01)
    assert running.end_all(mark) == ["sleep 600"]
    assert orphan.wait(10) == -signal.SIGKILL
    assert running.end_all(mark) == []
