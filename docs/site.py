"""Build the site: ``python docs/site.py FOLDER [MERMAID]``; ``nox -s docs`` does it.

Pages are those of the repository, as they are. Of the public names, pages are made here from
docstrings. Broken links and pages that no list names fail. At the end stands how easy each page is
to read (Flesch reading ease, 60 and more is plain).
"""

import importlib
import inspect
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from generate import doc_of, first_sentence

REPOSITORY = Path(__file__).parents[1]
LIBRARIES = ("agl_learning", "agl_records", "agl_views", "agl_models", "agl_torch")
"""Whose names authors import besides those of ``agl``."""
FOLDERS = "docs", "examples", "deploy", "clients"
DRAW = """
document.querySelectorAll("div.highlight-mermaid").forEach((block) => {
  const drawing = document.createElement("pre");
  drawing.className = "mermaid";
  drawing.textContent = block.querySelector("pre").textContent;
  block.replaceWith(drawing);
});
const theme = document.documentElement.classList.contains("dark") ? "dark" : "default";
mermaid.initialize({ theme });
mermaid.run();
"""


def write_names(folder: Path) -> None:
    """A page for each package with the names that it offers."""
    import agl
    from agl.utils.catalogue import offered, public_names

    homes: dict[str, list[str]] = {"agl-core": sorted(agl.__all__)}
    options: dict[str, str] = {}
    for name, (group, entry) in public_names("components").items():
        package = offered(group)[entry].partition("[")[0]
        homes.setdefault(package, []).append(name)
        kind = group.removeprefix("agl.").replace("ies", "ys").rstrip("s")
        heading = f"{kind}-{entry}-{package}".replace("+", "")
        options[name] = f"[Its options](../reference/components.md#{heading}).\n"
    for package, names in homes.items():
        blocks = [f"# Names of {package}\n\nEach is `agl.<name>`.\n"]
        for name in sorted(names):
            blocks += [_described("agl", name), options.get(name, "")]
        (folder / f"{package}.md").write_text("\n".join(blocks), "utf-8")
    known = {name for names in homes.values() for name in names}
    for library in LIBRARIES:
        names = [name for name in importlib.import_module(library).__all__ if name not in known]
        blocks = [f"# Names of {library}\n", *(_described(library, name) for name in names)]
        (folder / f"{library}.md").write_text("\n".join(blocks), "utf-8")


def _described(package: str, name: str) -> str:
    value = getattr(importlib.import_module(package), name)
    kind = "class" if inspect.isclass(value) else "function"
    if kind == "class" or inspect.isroutine(value):
        return f"```{{eval-rst}}\n.. auto{kind}:: {package}.{name}\n```\n"
    return f"`{package}.{name}`: {first_sentence(doc_of(package, name))}\n"


def reading_ease(page: Path) -> float | None:
    """Of its sentences, without code and tables; None where there are few."""
    import textstat

    left_out = r"^```.*?^```|^\|.*?$|^#.*?$|^\*\*[^*]*\*\*$|<!--.*?-->"
    text = re.sub(left_out, "", page.read_text("utf-8"), flags=re.M | re.S)
    text = re.sub(r"`[^`]*`", "it", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text))
    return textstat.flesch_reading_ease(text) if len(text.split()) > 100 else None


def main(out: Path, mermaid: Path | None = None) -> int:
    """Build; what Sphinx ends with."""
    shutil.rmtree(out, ignore_errors=True)
    source = out / "source"
    said = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md", *FOLDERS],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in said.stdout.split("\n")[:-1]:
        if name.startswith(("changelog.d", "tests")) or not (REPOSITORY / name).exists():
            continue
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, source / name)
    (source / "docs/api").mkdir()
    write_names(source / "docs/api")
    (source / "docs/_static").mkdir()
    (source / "docs/_static/draw.js").write_text(DRAW, "utf-8")
    if mermaid is not None:
        shutil.copy(mermaid, source / "docs/_static/mermaid.min.js")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", source / "docs"]
    status = subprocess.run([*command, source, out / "html"]).returncode
    pages = [page for page in source.glob("docs/**/*.md") if "api" not in page.parts]
    eases = {page: ease for page in pages if (ease := reading_ease(page)) is not None}
    for page, ease in sorted(eases.items(), key=lambda one: one[1]):
        print(f"{ease:5.0f}  {page.relative_to(source)}")
    print(f"Reading ease: median {statistics.median(eases.values()):.0f} of {len(eases)} pages")
    return status


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
