"""``agl prometheus``."""

import sys
from collections.abc import Sequence

from agentlightning.cli import run


def main(argv: Sequence[str] | None = None) -> int:
    """``agl prometheus`` with these arguments, the program's by default."""
    return run("prometheus", *(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
