"""Files of JSON lines."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agl.utils.files import write_whole


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write JSON lines, as ``write_whole`` does."""
    write_whole(path, "".join(json.dumps(record) + "\n" for record in records))
