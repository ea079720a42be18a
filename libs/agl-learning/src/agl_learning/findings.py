"""Why a run cannot learn, or not much: what was seen, the likely cause, and what to do.

Each is said once: as a warning, in ``findings.jsonl`` in the run's folder, and at the end.
"""

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

FINDINGS: Final = "findings.jsonl"
"""In a run's folder: a JSON object per finding."""


@dataclass(frozen=True)
class Finding:
    """Something that keeps a run from learning."""

    code: str
    step: int
    """After which it was noticed."""
    seen: str
    likely: str
    """The cause that is most frequent."""
    advice: str
    model: str = ""
    """Which it is about, where several are trained."""

    def __str__(self) -> str:
        return f"{self.seen}. Likely cause: {self.likely}. {self.advice}"


def read_findings(folder: Path) -> list[Finding]:
    """Those of a run; a line that cannot be read is left out."""
    found: list[Finding] = []
    with contextlib.suppress(OSError):
        for line in (folder / FINDINGS).read_text("utf-8", "replace").splitlines():
            with contextlib.suppress(ValueError, TypeError):
                said: dict[str, Any] = json.loads(line)
                found.append(Finding(**said))
    return found


def write_finding(folder: Path, finding: Finding) -> None:
    """Append one."""
    with (folder / FINDINGS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(finding)) + "\n")
