"""``agl vllm``."""

from agentlightning.cli import command

main = command("vllm", module=__name__)
