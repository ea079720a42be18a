"""The file of ``agl launch --skypilot`` is a task to SkyPilot itself, which asks no cloud for that.

SkyPilot wants an older click than agl has, so it is in an environment of its own.
"""

import json
import os
import subprocess

import pytest
from tests.run_project import write_project

PYTHON = os.environ.get("AGL_SKYPILOT_PYTHON")
pytestmark = pytest.mark.skipif(PYTHON is None, reason="nox -s deploy sets AGL_SKYPILOT_PYTHON")
READ = """
import json, sys
import sky, yaml

values = yaml.safe_load(sys.stdin)
task = sky.Task.from_yaml_config(values, secrets_overrides={"AGL_SERVER_TOKEN": "of-this-test"})
(found,) = task.resources
print(json.dumps([task.name, task.num_nodes, found.accelerators, found.job_recovery]))
"""


@pytest.mark.parametrize("gpus", ["0", "H100:8"])
def test_skypilot_takes_the_task(agl, here, gpus):
    write_project(here, 1)
    words = ("--machines", "3", "--gpus", gpus, "--name", "my-run", "agl.yaml", "strategy=cs")
    written = agl("launch", "--skypilot", *words)
    assert written.code == 0, written.err

    def read(text: str) -> "subprocess.CompletedProcess[str]":
        # It keeps what it knows of its user below HOME, and asks who that is.
        environment = {**os.environ, "HOME": str(here), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
        asked = {"input": text, "env": environment, "capture_output": True, "text": True}
        return subprocess.run([str(PYTHON), "-c", READ], **asked)

    done = read(written.out)
    assert done.returncode == 0, done.stderr
    name, nodes, accelerators, recovery = json.loads(done.stdout)
    assert (name, nodes) == ("my-run", 3)
    assert accelerators == (None if gpus == "0" else {"H100": 8})
    assert recovery["max_restarts_on_errors"] == 3
    assert "did you mean 'num_nodes'" in read(written.out.replace("num_nodes", "num_nods")).stderr
