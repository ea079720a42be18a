"""Logging set-up for scripts; libraries only ever use ``logging.getLogger``."""

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agl.utils.catalogue import refuse_keywords
from agl.utils.secrets import hide
from agl.utils.text import capped, clean, printable

if TYPE_CHECKING:
    from rich.console import Console

LONGEST_RECORD = 10_000
"""Characters of a log record that are written, its traceback included."""
LINE = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"
"""In files and pipes; on a terminal a record is the time of day and what is said."""


@functools.cache
def stderr_console() -> "Console":
    """The terminal that logs and progress bars share, so that lines stand above the bar."""
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            # Who read it is gone, as behind ``| head``. Rich would end the process.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())

    return Terminal(stderr=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=stderr_console.cache_clear)  # a thread may hold its lock


def tell(text: str, style: str = "") -> None:
    """Write a line on standard error; nothing fails where nobody reads it any more."""
    from rich.text import Text

    stderr_console().print(Text(text, style), soft_wrap=True)


class _Formatter(logging.Formatter):
    # Who logs waits for the terminal or the file: an error of 80 MB would stop a runner.
    def format(self, record: logging.LogRecord) -> str:
        return printable(hide(clean(capped(super().format(record), LONGEST_RECORD))))


class _Console(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            is_normal = record.levelno <= logging.INFO
            short = f"%(asctime)s {'' if is_normal else '%(levelname)s '}%(message)s"
            is_seen = stderr_console().is_terminal
            form = self.formatter or (_Formatter(short, "%X") if is_seen else _Formatter(LINE))
            tell(form.format(record), "" if is_normal else "yellow")
        except Exception:
            self.handleError(record)


class _Hiding(logging.Filter):
    """For handlers that are not ours: what a record says, without secrets."""

    def filter(self, record: logging.LogRecord) -> bool:
        with contextlib.suppress(Exception):  # the handler says what is wrong with a record
            if (hidden := hide(said := record.getMessage())) != said:
                record.msg, record.args = hidden, None
            if record.exc_info and not record.exc_text:
                record.exc_text = hide(logging.Formatter().formatException(record.exc_info))
        return True


@refuse_keywords("setup_logging")
def setup_logging(
    level: int | str = "INFO",
    *,
    console: bool = True,
    submodule_levels: dict[str, int | str] | None = None,
    extra_handlers: Sequence[logging.Handler] = (),
    files: str | dict[str, str] | None = None,
    propagate: bool = False,
) -> None:
    """Send agl's log to the terminal, and to files.

    Args:
        level: Of the ``agl`` logger and all under it.
        console: Whether to write to standard error.
        submodule_levels: Logger name -> level, for exceptions.
        extra_handlers: Further handlers of the ``agl`` logger.
        files: A path for everything, or logger name -> path.
        propagate: Whether records also go to the root logger.
    """
    logger = setup_module_logging(level, name="agl", console=console, propagate=propagate)
    for handler in extra_handlers:
        handler.addFilter(_Hiding())
        logger.addHandler(handler)
    for name, sub_level in (submodule_levels or {}).items():
        logging.getLogger(name).setLevel(sub_level)
    for name, path in ({"agl": files} if isinstance(files, str) else files or {}).items():
        handler = logging.FileHandler(path)
        handler.setFormatter(_Formatter(LINE))
        logging.getLogger(name).addHandler(handler)


def setup_module_logging(
    level: int | str = "INFO", *, name: str = "agl", console: bool = True, propagate: bool = False
) -> logging.Logger:
    """Set up one logger anew; handlers that it had are removed."""
    logger = logging.getLogger(name)
    logger.setLevel(level)
    logger.propagate = propagate
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    if console:
        logger.addHandler(_Console())
    return logger
