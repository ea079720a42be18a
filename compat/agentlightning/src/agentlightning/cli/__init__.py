"""The command ``agl``."""

import sys
from collections.abc import Callable, Sequence


def command(*name: str, module: str) -> Callable[..., int]:
    """``agl``, or one of its commands, as a function; it is run if ``module`` is the program."""

    def main(argv: Sequence[str] | None = None) -> int:
        """Run the command with these arguments, the program's by default.

        Returns:
            0 done, 1 the run failed, 2 the request was wrong.
        """
        from agl.cli import main as agl

        try:
            agl([*name, *(sys.argv[1:] if argv is None else argv)])
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else int(bool(ended.code))

    if module == "__main__":
        sys.exit(main())
    return main


main = command(module=__name__)
