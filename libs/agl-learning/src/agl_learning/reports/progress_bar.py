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
        self._progress: Any = None
        if not shows or not stderr_console().is_terminal:
            return
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._progress = Progress(
            TextColumn(f"[bold]{name}[/]"),
            BarColumn(),
            MofNCompleteColumn(),
            *(TextColumn(f"{{task.fields[{field}]}}") for field in shown),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=stderr_console(),
        )
        self._task = self._progress.add_task("", total=total, completed=done, **shown)

    @property
    def is_seen(self) -> bool:
        """Whether there is a terminal that shows it."""
        return self._progress is not None

    def __enter__(self) -> "Bar":
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self, done: int | None = None, **shown: str) -> None:
        """So much is done, and these texts are to be shown; what is not given stays."""
        if self._progress is not None:
            self._progress.update(self._task, completed=done, **shown)
