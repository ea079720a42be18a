"""What was found in a script, and the script with its changes made."""

import ast
import sys
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One place of a script."""

    line: int
    kind: Literal["change", "look"]
    """``change``: what ``--write`` does. ``look``: what a person must."""
    what: str
    """As it stands."""
    becomes: str | None
    why: str


@dataclass(frozen=True)
class Edit:
    """Bytes of a source, from and to, and what takes their place."""

    start: int
    end: int
    text: str


class Changes(ast.NodeVisitor):
    """A walk over a source that collects changes and findings."""

    def __init__(self, source: str) -> None:
        self.bytes = source.encode()
        self.starts = [0]
        for line in self.bytes.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.findings: list[Finding] = []
        self.edits: list[Edit] = []
        self.is_placed = True
        """Whether the place of a node is known."""

    def result(self) -> str:
        out = self.bytes
        for edit in sorted(self.edits, key=lambda edit: edit.start, reverse=True):
            out = out[: edit.start] + edit.text.encode() + out[edit.end :]
        return out.decode()

    def start_of(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        """First byte of a node."""
        return self.starts[node.lineno - 1] + node.col_offset

    def end_of(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        """First byte after a node."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.starts[node.end_lineno - 1] + node.end_col_offset

    def segment(self, node: ast.expr | ast.stmt | ast.keyword) -> str:
        """A node as it stands in the source."""
        return self.bytes[self.start_of(node) : self.end_of(node)].decode()

    def joint(self, node: ast.stmt) -> str:
        """What stands between a statement and another one that is put behind it."""
        line = self.starts[node.lineno - 1]
        before = self.bytes[line : self.start_of(node)].decode()
        return "; " if before.strip() else f"\n{before}"

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Before Python 3.12 nobody says where in a text the names of an f-string stand."""
        is_first, self.is_placed = self.is_placed, sys.version_info >= (3, 12)
        self.generic_visit(node)
        self.is_placed = is_first

    def replace(self, node: ast.expr | ast.stmt, becomes: str, why: str) -> None:
        if not self.is_placed:
            self.look(node, ast.unparse(node), f"in an f-string; write {becomes}")
            return
        what = self.segment(node)
        if what == becomes:
            return
        self.edits.append(Edit(self.start_of(node), self.end_of(node), becomes))
        self.found(node, "change", what, becomes, why)

    def look(self, node: ast.expr | ast.stmt | ast.keyword, what: str, why: str) -> None:
        self.found(node, "look", what, None, why)

    def found(
        self,
        node: ast.expr | ast.stmt | ast.keyword,
        kind: Literal["change", "look"],
        what: str,
        becomes: str | None,
        why: str,
    ) -> None:
        self.findings.append(Finding(node.lineno, kind, what, becomes, why))
