"""A real Ray cluster of several nodes, all on this machine."""

import pytest
from ray.cluster_utils import Cluster
from tests.seams.conftest import scene as scene  # a fixture
from tests.waiting import free_port

NODE = {"object_store_memory": 80_000_000, "include_dashboard": False}
HEAD = {**NODE, "num_cpus": 0, "_system_config": {"health_check_period_ms": 500}}


def start_cluster(**head):
    return Cluster(initialize_head=True, head_node_args={**HEAD, **head})


@pytest.fixture(scope="module")
def cluster():
    """A head without room for runners, and a node with."""
    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")  # as the package's README says
        cluster = start_cluster(ray_client_server_port=port)
    cluster.client_address = f"ray://127.0.0.1:{port}"
    cluster.add_node(**NODE, num_cpus=4)
    yield cluster
    cluster.shutdown()
