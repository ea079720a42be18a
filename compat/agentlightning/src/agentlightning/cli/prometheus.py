"""``agl prometheus``."""

from agentlightning.cli import command

main = command("prometheus", module=__name__)
