import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from rollouts_by_hand import collected, ended

__all__ = ["collected", "ended"]
