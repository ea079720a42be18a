"""How many runners there are, where, and with what code."""

import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.seams.scene import wait_until

SCALED = """
@agl.rollout
def agent(task: int) -> float:
    (HERE / f"started-{{task}}").write_text(str(os.getpid()))
    while len({{one.read_text() for one in HERE.glob("started-*")}} - {{""}}) < 4:
        time.sleep(0.1)
    return 1.0

@agl.algo
async def algorithm(store):
    for tasks in (range(12), range(12, 15)):
        rollouts = [await store.enqueue_rollout(task) for task in tasks]
        await store.wait_for_rollouts(rollout_ids=[r.rollout_id for r in rollouts])
        (HERE / "done").touch()
        await asyncio.to_thread(wait_for, "go")
    ended = await store.query_rollouts()
    print("RESULT", *(rollout.status for rollout in ended), flush=True)

options = {{"type": "ray", "address": "{address}", "resources": {{"cpu": 0.5}}}}
trainer(algorithm, **options, runners=6, min_runners=1).fit(agent)
"""


def test_runners_follow_the_queue(scene, cluster):
    run = scene.start(SCALED.format(address=cluster.address))
    assert wait_until(lambda: (scene.folder / "done").exists()), scene.errors.read_text()
    runners = {psutil.Process(int(path.read_text())) for path in scene.folder.glob("started-*")}
    assert 4 <= len(runners) <= 6
    assert wait_until(lambda: sum(one.is_running() for one in runners) <= 1)
    (scene.folder / "go").touch()
    assert run.wait(timeout=60) == 0, scene.errors.read_text()
    assert scene.output.read_text().split().count("succeeded") == 15
    assert wait_until(lambda: scene.left() == [])


AGENT = """
import os
import agl

@agl.rollout
def agent(task: int) -> float:
    print("in", os.getcwd(), flush=True)
    here = {*os.listdir()} - {"__pycache__"}  # made by the import of this module
    assert here == {"agl.yaml", "my_agent.py", "tasks.jsonl", "outside"}, here
    assert os.listdir("outside") == ["notes.txt"]
    return float(os.environ["HALF"]) * task
"""
CONFIG = """
agent: my_agent:agent
algorithm: baseline
train: tasks.jsonl
strategy:
  type: ray
  runners: 2
  address: {address}
  resources: {{cpu: 0.1}}
  runtime_env: {{working_dir: {working_dir}, env_vars: {{HALF: "0.5"}}}}
"""


@pytest.mark.parametrize("client", [False, True], ids=["as a driver", "as a client"])
def test_code_is_shipped(cluster, tmp_path, client):
    """By ``agl run`` from a folder that no node has in its path; what runs keep stays here."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/notes.txt").touch()
    (tmp_path / "agl-runs/another").mkdir(parents=True)
    (tmp_path / "agl-runs/another/store.db").touch()
    address = cluster.client_address if client else cluster.address
    given = ["run_dir=outside/run"] if client else []
    run = agl_run(tmp_path, address, tmp_path, *given)
    assert run.returncode == 0, run.stderr
    assert "2 succeeded, mean reward 0.750" in run.stderr
    assert "runtime_resources" in run.stdout  # where Ray has unpacked the folder


def test_agent_that_no_node_can_import_ends_the_run(cluster, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run = agl_run(tmp_path, cluster.address, working_dir=elsewhere)
    assert run.returncode == 1
    ship = "Ship the agent's code with runtime_env"
    assert f"ModuleNotFoundError: No module named 'my_agent'. {ship}" in run.stderr


def test_why_an_environment_cannot_be_made_is_said_whole(cluster, tmp_path):
    """Ray puts a traceback before it."""
    pip = "strategy.runtime_env.pip=[agl-that-no-index-has]"
    run = agl_run(tmp_path, cluster.address, tmp_path, pip)
    assert run.returncode == 1
    # There is no virtualenv; where there is, it cannot be cloned, or has no such package.
    why = run.stderr.splitlines()[-1]
    assert re.search("virtualenv|agl-that-no-index-has", why), run.stderr


def agl_run(folder, address, working_dir, *given):
    (folder / "my_agent.py").write_text(AGENT)
    (folder / "tasks.jsonl").write_text("1\n2\n")
    config = CONFIG.format(address=address, working_dir=working_dir)
    (folder / "agl.yaml").write_text(config)
    command = [Path(sys.executable).with_name("agl"), "run", "agl.yaml", *given]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
