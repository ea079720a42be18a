"""``python -m agentlightning.verl key=value ...``."""

import sys

from agentlightning.verl.entrypoint import main

if __name__ == "__main__":
    sys.exit(main())
