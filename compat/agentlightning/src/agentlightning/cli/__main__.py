"""``python -m agentlightning.cli``: the command ``agl``."""

import sys

from agentlightning.cli import main

if __name__ == "__main__":
    sys.exit(main())
