"""Why a run cannot learn, or not much: what was seen, the likely cause, and what to do.

Each is said once: as a warning, in ``findings.jsonl`` in the run's folder, and at the end.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from agl_learning.reports.json_lines import read_json_lines

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


def read_findings(folder: Path) -> tuple[list[Finding], str]:
    """Those of a run, and which lines cannot be read and are left out, in words."""
    found: list[Finding] = []
    read = read_json_lines(folder / FINDINGS)
    for number, said in read.objects:
        kinds = {name: int if name == "step" else str for name in said}
        try:
            if any(type(said[name]) is not kind for name, kind in kinds.items()):
                raise TypeError
            found.append(Finding(**said))
        except TypeError:
            read.leave_out(f"line {number}: no finding")
    return found, read.unread


def write_finding(folder: Path, finding: Finding) -> None:
    """Append one."""
    with (folder / FINDINGS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(finding)) + "\n")
