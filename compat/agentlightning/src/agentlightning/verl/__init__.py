"""verl, started from the command line: ``python -m agentlightning.verl key=value ...``."""

from agentlightning.verl.entrypoint import main as main, run_ppo as run_ppo
