"""``agl vllm``."""

import sys
from collections.abc import Sequence

from agentlightning.cli import run


def main(argv: Sequence[str] | None = None) -> int:
    """``agl vllm`` with these arguments, the program's by default."""
    return run("vllm", *(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
