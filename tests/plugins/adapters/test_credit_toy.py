import importlib.util
from pathlib import Path

PATH = Path(__file__).parents[3] / "benchmarks" / "credit_toy.py"


def test_credit_per_agent_reaches_the_target_in_fewer_rollouts_for_every_seed() -> None:
    spec = importlib.util.spec_from_file_location("credit_toy", PATH)
    toy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(toy)
    for seed in range(3):
        per_agent, final = (
            toy.rollouts_to_target(credit, 64.0, seed, limit=1600)
            for credit in ("per_agent", "final")
        )
        assert per_agent < final < 1600
