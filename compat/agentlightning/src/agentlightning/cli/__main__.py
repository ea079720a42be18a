"""``python -m agentlightning.cli``: the command ``agl``."""

from agentlightning.cli import command

main = command(module=__name__)
