"""What moves on standard error while something takes long; nothing where that is no terminal."""

from typing import Any

from agl.utils.logs import stderr_console


class Bar:
    """A bar with how much is done, the time that passed and the time left; the log stays above it.

    ``total`` is None where nobody knows it; ``shown`` are further texts behind the numbers.
    """

    def __init__(
        self, name: str, total: int | None, done: int = 0, *, shows: bool = True, **shown: str
    ) -> None:
        from rich import progress

        console = stderr_console()
        self.is_seen = shows and console.is_terminal
        """Whether there is a terminal that shows it."""
        self._progress: Any = progress.Progress(
            progress.TextColumn(f"[bold]{name}[/]"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            *(progress.TextColumn(f"{{task.fields[{field}]}}") for field in shown),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=console,
            disable=not self.is_seen,
        )
        self._task = self._progress.add_task("", total=total, completed=done, **shown)

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.is_seen:  # else an older rich would write an empty line
            self._progress.stop()

    def update(self, done: int | None = None, **shown: str) -> None:
        """So much is done, and these texts are to be shown; what is not given stays."""
        self._progress.update(self._task, completed=done, **shown)
