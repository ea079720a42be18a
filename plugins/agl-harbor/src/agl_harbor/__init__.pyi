from .agent import HarborAgent as HarborAgent
from .environment import harbor as harbor

__all__ = ["HarborAgent", "harbor"]
