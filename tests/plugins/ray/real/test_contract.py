"""The contract of strategies, over a cluster."""

import pytest

from agl_ray.strategy import RayExecutionStrategy
from agl_testing.strategy_contract import StrategyContract


class TestRay(StrategyContract):
    @pytest.fixture
    def strategy(self, cluster):
        return RayExecutionStrategy(
            runners=2, resources={"cpu": 0.1}, address=cluster.address, graceful_timeout=0.5
        )
