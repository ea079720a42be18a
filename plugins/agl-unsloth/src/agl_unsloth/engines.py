"""Which engine trains, found out before anything is rolled out."""

import asyncio
import json
import logging
import sys
from typing import Any

from agl.errors import ConfigError, install_line
from agl_unsloth.options import Engine

logger = logging.getLogger("agl.unsloth")

LIBRARIES = ("agl_unsloth", "trl", "peft", "torch", "transformers", "unsloth", "bitsandbytes")
_LOOK = (
    "import importlib.util, json; "
    f"print(json.dumps({{n: importlib.util.find_spec(n) is not None for n in {LIBRARIES!r}}}))"
)
INSTALL_UNSLOTH = "see 'Install Unsloth' in docs/howto/fine-tune.md"


async def choose_engine(wanted: str, python: str | None, *, lora: bool, four_bit: bool) -> Engine:
    """What ``auto`` means in an environment; other names as they are, if they can be used.

    Unsloth is imported once for that, in a process of its own: only then is it known whether it
    works with the torch and the hardware that are there.

    Args:
        wanted: ``auto``, ``unsloth`` or ``trl``.
        python: The interpreter that trains; None for this one.
        lora: Whether an adapter is trained.
        four_bit: Whether the weights are loaded in 4 bits.

    Raises:
        ConfigError: Something that is needed is not there; it says what to install where.
    """
    interpreter = python or sys.executable
    has = await _libraries(interpreter)
    where = "" if python is None else f" in the environment of {python}"
    if not has["agl_unsloth"]:
        raise ConfigError(
            f"agl-unsloth itself is not installed{where}. Run: {install_line('agl-unsloth')}"
        )
    problem: str | None = None
    if wanted in ("auto", "unsloth"):
        problem = "it is not installed"
        if has["unsloth"]:
            code, _, error = await _run(interpreter, "import unsloth")
            problem = None if code == 0 else f"importing it failed: {error}"
        if problem is None:
            _check(has, "unsloth", where, four_bit=four_bit, peft=False)
            logger.info("training with unsloth (it is installed and can be imported)")
            return "unsloth"
        if wanted == "unsloth":
            raise ConfigError(
                f"engine 'unsloth' cannot be used{where}: {problem}; {INSTALL_UNSLOTH}"
            )
    _check(has, "trl", where, four_bit=four_bit, peft=lora)
    why = f"Unsloth: {problem}" if problem else "it was asked for"
    logger.info("training with trl (%s)", why)
    return "trl"


def _check(has: dict[str, bool], engine: str, where: str, *, four_bit: bool, peft: bool) -> None:
    needed = ["torch", "transformers", "trl"]
    needed += ["peft"] if peft else []
    needed += ["bitsandbytes"] if four_bit else []
    missing = [name for name in needed if not has[name]]
    if missing:
        uses = {"peft": " (for lora)", "bitsandbytes": " (for load_in_4bit)"}
        listed = ", ".join(f"{name!r}{uses.get(name, '')}" for name in missing)
        lines = [install_line("agl-unsloth[trl]")] if missing != ["bitsandbytes"] else []
        lines += ["pip install bitsandbytes"] if "bitsandbytes" in missing else []
        raise ConfigError(
            f"engine {engine!r} needs {listed}, not installed{where}. Run: {' && '.join(lines)}"
        )


async def _libraries(interpreter: str) -> dict[str, bool]:
    code, out, error = await _run(interpreter, _LOOK)
    if code != 0:
        raise ConfigError(f"python {interpreter!r} cannot be run: {error}")
    return json.loads(out.splitlines()[-1])


async def _run(interpreter: str, program: str) -> tuple[int, str, str]:
    """Exit code, output, and the last line of the errors."""
    try:
        process = await asyncio.create_subprocess_exec(
            *(interpreter, "-c", program),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as failure:
        return 1, "", failure.strerror or str(failure)
    out, error = await process.communicate()
    lines: Any = [line for line in error.decode(errors="replace").splitlines() if line.strip()]
    return process.returncode or 0, out.decode(), lines[-1].strip() if lines else "no message"
