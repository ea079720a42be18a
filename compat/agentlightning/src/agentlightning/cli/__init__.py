"""The command ``agl``."""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, the program's by default.

    Returns:
        0 done, 1 the run failed, 2 the request was wrong.
    """
    return run(*(sys.argv[1:] if argv is None else argv))


def run(*arguments: str) -> int:
    """``agl`` with these arguments."""
    from agl.cli import main as agl

    try:
        agl(list(arguments))
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(bool(ended.code))
