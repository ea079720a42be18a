"""Logging for scripts."""

import logging
from typing import Any

from agl import setup_logging as _setup, setup_module_logging as _setup_module

DATE_FORMAT = "%H:%M:%S"
DEFAULT_FORMAT = "%(asctime)s [%(levelname)s] (Process-%(process)d %(name)s)   %(message)s"


def setup(
    level: int | str = "INFO",
    *,
    console: bool = True,
    color: bool | dict[str, Any] = True,
    propagate: bool = False,
    disable_existing_loggers: bool = False,
    capture_warnings: bool = False,
    submodule_levels: dict[str, int | str] | None = None,
    extra_handlers: list[logging.Handler] | None = None,
    formatter: logging.Formatter | None = None,
    apply_to: list[str] | None = None,
    files: str | dict[str, str] | None = None,
) -> None:
    """Send agl's log to the terminal, and to files; see ``agl.setup_logging``.

    Args:
        level: Of the log.
        console: Whether to write to standard error.
        color: False writes plain lines; options of rich are taken as True.
        propagate: Whether records also go to the root logger.
        disable_existing_loggers: Silence the loggers of everybody else.
        capture_warnings: Whether Python's warnings are logged.
        submodule_levels: Logger name -> level, for exceptions.
        extra_handlers: Further handlers.
        formatter: Of all handlers.
        apply_to: Further loggers that get the same handlers and level.
        files: A path for everything, or logger name -> path.
    """
    if disable_existing_loggers:
        _silence_all_but("agl", "agentlightning")
    plain = [_plain_handler()] if console and color is False else []
    _setup(
        level,
        console=console and color is not False,
        submodule_levels={_ours(name): of for name, of in (submodule_levels or {}).items()},
        extra_handlers=[*(extra_handlers or ()), *plain],
        files={_ours(name): path for name, path in files.items()}
        if isinstance(files, dict)
        else files,
        propagate=propagate,
    )
    logger = logging.getLogger("agl")
    for handler in logger.handlers:
        if formatter is not None:
            handler.setFormatter(formatter)
    for name in ("agentlightning", *(apply_to or ())):
        other = logging.getLogger(name)
        other.handlers = list(logger.handlers)
        other.propagate = propagate
        other.setLevel(level)
    logging.captureWarnings(capture_warnings)


def setup_module(
    level: int | str = "INFO",
    *,
    name: str = "agentlightning",
    console: bool = True,
    color: bool | dict[str, Any] = True,
    propagate: bool = False,
    disable_existing_loggers: bool = False,
) -> logging.Logger:
    """Set up one logger; see ``setup``."""
    logger = _setup_module(
        level, name=_ours(name), console=console and color is not False, propagate=propagate
    )
    if console and color is False:
        logger.addHandler(_plain_handler())
    if disable_existing_loggers:
        _silence_all_but(_ours(name))
    return logger


def configure_logger(level: int = logging.INFO, name: str = "agentlightning") -> logging.Logger:
    """Set up one logger; newer scripts call ``setup_logging``."""
    return setup_module(level, name=name)


def _plain_handler() -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(DEFAULT_FORMAT, DATE_FORMAT))
    return handler


def _silence_all_but(*names: str) -> None:
    for other in list(logging.root.manager.loggerDict):
        if not f"{other}.".startswith(tuple(f"{name}." for name in names)):
            logging.getLogger(other).disabled = True


def _ours(name: str) -> str:
    """The logger of agl that a logger of the original stands for."""
    head, dot, tail = name.partition(".")
    return f"agl{dot}{tail}" if head == "agentlightning" else name


setup_logging, setup_module_logging = setup, setup_module
