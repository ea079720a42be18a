"""``agl store``."""

import sys

from agentlightning.cli import command

main = command("store")

if __name__ == "__main__":
    sys.exit(main())
