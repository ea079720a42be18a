"""The public names; each is imported when it is first used."""

from .cispo import CISPO as CISPO
from .distillation import Distillation as Distillation
from .grpo import GRPO as GRPO
from .gspo import GSPO as GSPO
from .loss import Gain as Gain, Tokens as Tokens
from .policy import PolicyTraining as PolicyTraining
from .ppo import PPO as PPO
from .reinforce import ReinforcePlusPlus as ReinforcePlusPlus
from .rloo import RLOO as RLOO
from .server import InferenceServer as InferenceServer

__version__: str
