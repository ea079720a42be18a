"""``agl store``."""

from agentlightning.cli import command

main = command("store", module=__name__)
