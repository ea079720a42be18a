"""A run as a job of Ray: its algorithm is on a node with a GPU, where the run itself has none."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster
from tests.plugins.ray.real.conftest import NODE
from tests.waiting import free_port

pytest.importorskip("aiohttp_cors", reason="needs ray[default]: nox -s ray-jobs")
FILES = {
    "my_agent.py": """
import agl

@agl.rollout
def agent(task: int) -> float:
    return 0.5 * task
""",
    "my_algorithm.py": """
import os
import agl

class Asking(agl.Algorithm):
    async def run(self, train_dataset=None, val_dataset=None):
        store = self.get_store()
        print("GPU", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
        for task in train_dataset:
            await store.enqueue_rollout(task)
        await store.wait_for_rollouts(
            rollout_ids=[one.rollout_id for one in await store.query_rollouts()]
        )
""",
    "agl.yaml": """
agent: my_agent:agent
algorithm: my_algorithm:Asking
train: tasks.jsonl
strategy: {type: ray, address: auto, runners: 2, resources: {cpu: 0.1}}
""",
    "tasks.jsonl": "1\n2\n",
}


@pytest.fixture(scope="module")
def dashboard():
    """The address where a cluster takes jobs: a head without a GPU, and a node with one."""
    port = free_port()
    ports = {"dashboard_port": port, "dashboard_agent_listen_port": free_port()}
    head = {**NODE, "num_cpus": 1, "include_dashboard": True, **ports}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(**NODE, num_cpus=2, num_gpus=1)
    yield f"http://127.0.0.1:{port}"
    cluster.shutdown()


def submit(dashboard, folder, *given):
    for name, text in FILES.items():
        (folder / name).write_text(text)
    programs = Path(sys.executable).parent
    asked = ["--working-dir", folder, "--entrypoint-num-gpus", "1"]
    words = [programs / "ray", "job", "submit", "--address", dashboard, *asked]
    words += ["--", programs / "agl", "run", "agl.yaml", *given]
    while "try again later" in (ended := subprocess.run(words, **CAPTURED)).stderr:
        time.sleep(1)  # its agents begin one after the other
    return ended


CAPTURED = {"capture_output": True, "text": True, "timeout": 250}


@pytest.mark.timeout(300)
def test_the_algorithm_has_the_gpu_that_its_job_asked_for(dashboard, tmp_path):
    (tmp_path / "project").mkdir()
    ended = submit(dashboard, tmp_path / "project", f"run_dir={tmp_path / 'run'}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"^GPU \d", ended.stdout, re.M), ended.stdout
    assert "2 succeeded, mean reward 0.75" in ended.stdout
    assert (tmp_path / "run/store.db").exists()


@pytest.mark.timeout(300)
def test_a_run_that_ray_would_delete_does_not_begin(dashboard, tmp_path):
    ended = submit(dashboard, tmp_path)
    assert ended.returncode != 0
    assert "when this job ends. Give a folder that stays: run_dir=/" in ended.stdout
