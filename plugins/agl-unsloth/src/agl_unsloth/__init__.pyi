"""The public names; each is imported when it is first used."""

from .dpo import DPO as DPO
from .sft import SFT as SFT

__version__: str
