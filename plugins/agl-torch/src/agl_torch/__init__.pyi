"""The public names; each is imported when it is first used."""

from .grpo import GRPO as GRPO
from .server import InferenceServer as InferenceServer

__version__: str
