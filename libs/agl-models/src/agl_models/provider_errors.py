"""What those share that ask a provider: its errors, and how long to wait."""

import math
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from agl.errors import AlgorithmError, ConfigError, install_line


class RemoteRefusalError(AlgorithmError):
    """The provider refused or failed; what had been reached is in the notes of the run."""


def not_installed(algorithm: str, plugin: str, error: ImportError) -> ConfigError:
    """The error where a package that a plugin depends on is not there after all."""
    return ConfigError(
        f"algorithm {algorithm!r} (plugin {plugin!r}) needs {error.name!r}, which is not "
        f"installed. Run: {install_line(plugin)}"
    )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that a ``Retry-After`` asks for, in either of its forms; None without one."""
    value = headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def status_of(error: BaseException) -> int | None:
    """The HTTP status of an error of an SDK; None where no answer came."""
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None
