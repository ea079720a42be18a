"""``agl prometheus``."""

import sys

from agentlightning.cli import command

main = command("prometheus")

if __name__ == "__main__":
    sys.exit(main())
