"""Reads one script, and says what is to change in it, and what a person must look at."""

import ast
import itertools
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from agentlightning._migrate.changes import Changes, Edit, Finding
from agentlightning._migrate.homes import (
    DIFFERENT,
    KEYWORDS,
    METHODS,
    ORDER_OF_0_1,
    REFUSED_KEYWORDS,
    REMOVED_KEYWORDS,
    SERVER_OF_0_1,
    TRACER,
    VALUES,
    Home,
    advice_for,
    has_module,
    home_of,
    is_module,
    parameters_of,
)
from agentlightning._names import TOP, path_of

_dotted = re.compile(rf"{TOP}(\.\w+)+").fullmatch


@dataclass
class Bound:
    """What names of a script stand for; cells of a notebook share one."""

    modules: dict[str, str] = field(default_factory=dict[str, str])
    """Name -> path of the module below ``agentlightning``."""
    names: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """Name -> path of its module, and what it is called there."""
    tops: dict[str, str] = field(default_factory=dict[str, str])
    """Name of the top-level module -> how agl is called after the change."""


def migrate(source: str, bound: Bound | None = None) -> tuple[str, list[Finding]]:
    """The script over agl, and what was found, by line.

    What agl does not have goes on coming from ``agentlightning``. ``bound`` is what earlier cells
    of a notebook have bound; more is added. What is no Python is a ``SyntaxError``.
    """
    reader = _Reader(source, bound or Bound())
    reader.visit(reader.tree)
    reader.add_imports()
    findings = sorted(reader.findings, key=lambda finding: finding.line)
    return reader.result(), list(dict.fromkeys(findings))


class _Use(NamedTuple):
    """A chain of names, as a script has it."""

    root: str
    path: str
    """Of its module below ``agentlightning``: the longest that the chain begins with."""
    names: list[str]
    """What follows: the name in that module, and attributes of it."""


class _Reader(Changes):
    def __init__(self, source: str, bound: Bound) -> None:
        super().__init__(source)
        self.tree = ast.parse(source)
        self.bound = bound
        self.wanted: dict[str, None] = {}
        """Statements that must be added."""
        self.first: ast.stmt | None = None
        """Import of agentlightning, after which they go."""
        self.done: set[ast.AST] = set()

    def add_imports(self) -> None:
        """Statements that names need whose module is not imported; after the first import."""
        if not self.wanted or self.first is None:
            return
        end = self.end_of(self.first)
        joint = self.joint(self.first)
        self.edits.append(Edit(end, end, "".join(joint + each for each in self.wanted)))

    # --- imports

    def visit_Import(self, node: ast.Import) -> None:
        ours = [alias for alias in node.names if _is_ours(alias.name)]
        if not ours:
            return
        parts: list[str] = []
        for alias in node.names:
            if alias not in ours:
                parts.append(_as(alias.name, alias.asname))
                continue
            path = path_of(alias.name)
            if path and alias.asname:
                module = f"agl.{path}" if has_module(f"agl.{path}") else alias.name
                self.bound.modules[alias.asname] = path
                parts.append(f"{module} as {alias.asname}")
                continue
            name = alias.asname or TOP
            self.bound.modules[name] = ""
            if self._is_needed(name):
                parts.append(_as(alias.name, alias.asname))
                continue
            self.bound.tops[name] = alias.asname or "agl"
            parts.append(_as("agl", alias.asname))
        becomes = f"import {', '.join(dict.fromkeys(parts))}"
        self.replace(node, becomes, "the module is agl")
        self.first = self.first or node

    def _is_needed(self, name: str) -> bool:
        """Whether all that a script has from the module is what agl does not have."""
        uses: list[bool] = []
        attributes = [node for node in ast.walk(self.tree) if isinstance(node, ast.Attribute)]
        inner = {node.value for node in attributes}
        for node in attributes:
            found = None if node in inner else self._found(node)
            if found is not None and found.root == name:
                is_value = ".".join(found.names[:2]) in VALUES
                uses.append(home_of(found.path, found.names[0]) is None and not is_value)
        return bool(uses) and all(uses)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level or not _is_ours(node.module or ""):
            return
        path = path_of(node.module or "")
        groups: dict[str, list[str]] = {}
        kept: list[ast.alias] = []
        is_renamed = False
        for alias in node.names:
            local = alias.asname or alias.name
            below = f"{path}.{alias.name}".lstrip(".")
            home = Home("agl", "*") if alias.name == "*" else home_of(path, alias.name)
            if home is None and is_module(below):
                self.bound.modules[local] = below
                if has_module(f"agl.{below}"):
                    module = "agl" + (f".{path}" if path else "")
                    groups.setdefault(module, []).append(_as(alias.name, alias.asname))
                    continue
                kept.append(alias)
                self.look(node, f"{TOP}.{below}", advice_for(alias.name))
                continue
            self.bound.names[local] = (path, alias.name)
            if home is None:
                if alias.name == "RewardMatchPolicy":  # its members become texts
                    groups.setdefault("", [])
                    continue
                kept.append(alias)
                self.look(node, alias.name, advice_for(alias.name))
                continue
            is_renamed = is_renamed or home.name != alias.name
            asname = alias.asname or (alias.name if home.name != alias.name else None)
            groups.setdefault(home.module, []).append(_as(home.name, asname))
        self.first = self.first or node
        modules = [module for module in groups if module]
        if not modules and not (kept and "" in groups):
            if "" in groups:
                self.replace(node, "pass", "its members are texts")
            return
        segment = self.segment(node)
        if len(modules) == 1 and not kept and not is_renamed and "" not in groups:
            # Only the module's name, so that comments and line breaks stay.
            becomes = segment.replace(node.module or "", modules[0], 1)
        else:
            lines = [f"from {module} import {', '.join(groups[module])}" for module in modules]
            if kept:
                names = ", ".join(_as(alias.name, alias.asname) for alias in kept)
                lines.append(f"from {node.module} import {names}")
            becomes = self.joint(node).join(lines)
            if "#" in segment:
                self.look(node, segment, "comments within this import are lost")
        self.replace(node, becomes, "public names come from agl")

    # --- names in use

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node in self.done:
            return
        if (found := self._found(node)) is None:
            if _chain(node) is None:
                self.generic_visit(node)
            return
        root, path, names = found
        value = VALUES.get(".".join(names))
        if root in self.bound.names:
            if value is not None:
                self.replace(node, value, "agl takes the text")
            return
        top = self.bound.tops.get(root, root)
        if not self.is_placed and top != root:
            self.wanted.setdefault(f"import {TOP}")  # it stays as it is
        if not names:
            return
        used: ast.expr = node
        for _ in names[1:]:
            assert isinstance(used, ast.Attribute)
            used = used.value
        name = names[0]
        home = home_of(path, name)
        if home is None:
            if value is not None:
                self.replace(node, value, "agl takes the text")
                return
            self.look(node, name, advice_for(name))
            if root in self.bound.tops:
                self.wanted.setdefault(f"import {TOP}")
                becomes = ".".join(filter(None, (TOP, path, name)))
                self.replace(used, becomes, "agl does not have it; agentlightning does")
            return
        if root not in self.bound.tops:  # a module by another name
            if home != (f"agl.{path}", name):
                self.wanted.setdefault(f"import {home.module}")
                self.replace(used, f"{home.module}.{home.name}", "public names come from agl")
            return
        module = home.module.removeprefix("agl").removeprefix(".")
        becomes = ".".join(filter(None, (top, module, home.name)))
        if module.count(".") and top == "agl":
            self.wanted.setdefault(f"import {home.module}")
        if becomes != ast.unparse(used):
            self.replace(used, becomes, "public names come from agl")

    def visit_Name(self, node: ast.Name) -> None:
        new = self.bound.tops.get(node.id)
        if new is not None and new != node.id:
            if not self.is_placed:
                self.wanted.setdefault(f"import {TOP}")
            self.replace(node, new, "the module is agl")

    def _found(self, node: ast.expr) -> "_Use | None":
        """What a chain of names is, if its first one is bound to something of ours."""
        root, *names = _chain(node) or [""]
        if root in self.bound.names:
            path, name = self.bound.names[root]
            return _Use(root, path, [name, *names])
        if root not in self.bound.modules:
            return None
        path = self.bound.modules[root]
        while len(names) > 1 and is_module(below := f"{path}.{names[0]}".lstrip(".")):
            path, names = below, names[1:]
        return _Use(root, path, names)

    # --- calls

    def visit_Call(self, node: ast.Call) -> None:
        if not self.is_placed:
            self.generic_visit(node)
            return
        found = self._called(node.func)
        if found is not None and (home := home_of(*found)) is not None:
            self._look_at_keywords(node, found[1], home)
        self._look_at_fit(node)
        is_logger = isinstance(node.func, ast.Attribute) and node.func.attr == "getLogger"
        if is_logger and node.args and isinstance(node.args[0], ast.Constant):
            name = str(node.args[0].value)
            if _is_ours(name):
                self.done.add(node.args[0])
                self.replace(node.args[0], f'"{"agl" + name[len(TOP) :]}"', "agl's loggers")
        self.generic_visit(node)

    def _called(self, func: ast.expr) -> tuple[str, str] | None:
        found = self._found(func)
        return (found.path, found.names[0]) if found and len(found.names) == 1 else None

    def _look_at_keywords(self, node: ast.Call, name: str, home: Home) -> None:
        taken = parameters_of(home)
        removed: set[ast.expr | ast.keyword] = set()
        for keyword in node.keywords:
            place = (name, keyword.arg or "")
            if place in KEYWORDS:
                start = self.start_of(keyword)
                self.edits.append(Edit(start, start + len(place[1]), KEYWORDS[place]))
                becomes = f"{KEYWORDS[place]}="
                self.found(keyword, "change", f"{place[1]}=", becomes, f"{name} calls it so")
            elif place in REMOVED_KEYWORDS:
                removed.add(keyword)
                what = self.segment(keyword)
                self.found(
                    keyword, "change", what, "", f"without effect: {REMOVED_KEYWORDS[place]}"
                )
            elif place in REFUSED_KEYWORDS:
                self.look(keyword, f"{name}({place[1]}=)", REFUSED_KEYWORDS[place])
            elif taken is not None and keyword.arg is not None and keyword.arg not in taken:
                names = ", ".join(sorted(taken)) or "nothing"
                self.look(keyword, f"{name}({place[1]}=)", f"agl's {name} takes {names}")
        if name in DIFFERENT:
            self.look(node, name, DIFFERENT[name])
        added = ""
        given = {keyword.arg for keyword in node.keywords}
        if home == ("agl", "Trainer") and not {"tracer", None} & given:
            added = 'tracer="agentops"'
            self.found(node, "change", "Trainer(...)", f"Trainer(..., {added})", TRACER)
        self._change_arguments(node, removed, added)

    def _change_arguments(
        self, node: ast.Call, removed: set[ast.expr | ast.keyword], added: str
    ) -> None:
        given = sorted((*node.args, *node.keywords), key=self.start_of)
        kept = [each for each in given if each not in removed]
        close = self.end_of(node) - 1
        if not kept:
            if given or added:
                start = self.start_of(given[0]) if given else close
                self.edits.append(Edit(start, close, added))
            return
        last = self.end_of(kept[-1])
        for each, following in itertools.pairwise(given):
            if each in removed and self.start_of(each) < last:
                self.edits.append(Edit(self.start_of(each), self.start_of(following), ""))
        self.edits.append(
            Edit(last, max(last, self.end_of(given[-1])), f", {added}" if added else "")
        )

    def _look_at_fit(self, node: ast.Call) -> None:
        is_fit = isinstance(node.func, ast.Attribute) and node.func.attr in ("fit", "fit_v0")
        for value in (*node.args[1:2], *(keyword.value for keyword in node.keywords)):
            text = value.value if isinstance(value, ast.Constant) else None
            if is_fit and isinstance(text, str) and text.startswith(("http://", "https://")):
                self.look(node, text, SERVER_OF_0_1)

    # --- the rest

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
        if any((found := self._called(base)) and found[1] == "LitAgent" for base in bases):
            for each in node.body:
                if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                if each.name in METHODS:
                    self.look(each, each.name, METHODS[each.name])
                if "rollout_id" in [one.arg for one in each.args.args]:
                    self.look(each, each.name, ORDER_OF_0_1)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if node in self.done or not isinstance(node.value, str) or not _dotted(node.value):
            return
        path, _, name = path_of(node.value).rpartition(".")
        if not path or not is_module(path) or is_module(path_of(node.value)):
            return
        home = home_of(path, name)
        if home is not None:
            becomes = f'"{home.module}.{home.name}"'
            self.replace(node, becomes, "components are found by agl's paths")


def _is_ours(module: str) -> bool:
    return module == TOP or module.startswith(f"{TOP}.")


def _as(name: str, asname: str | None) -> str:
    return f"{name} as {asname}" if asname and asname != name else name


def _chain(node: ast.expr) -> list[str] | None:
    """``a.b.c`` as its names; None for what is no such thing."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return [node.id, *reversed(names)]
