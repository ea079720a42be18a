"""``agl vllm``."""

import sys

from agentlightning.cli import command

main = command("vllm")

if __name__ == "__main__":
    sys.exit(main())
