"""Every block of README and docs is what it says: Python runs, configurations are checked.

The first word after the fence is the language; what follows it steers this module:

    needs="agl-torch"   skipped, with this reason, unless these distributions (or bwrap) are there
    file="agent.py"     the block is also that file in the folder in which its page's blocks run
    continues           the Python blocks before it on the page, back to one without the word, run
                        first
    nightly             it takes longer than a test may: nox -s nightly runs it

``#> text`` under a ``print`` is a line of its output, and compared with it.
"""

import json
import os
import re
import shutil
import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from tests.interpreter import python

REPOSITORY = Path(__file__).parents[2]
PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "core/README.md")),
    *sorted((REPOSITORY / "docs").rglob("*.md")),
    *sorted(REPOSITORY.glob("libs/*/README.md")),
]
PLUGIN_PAGES = [
    path
    for kind in ("plugins", "compat")
    for path in sorted(REPOSITORY.glob(f"{kind}/*/README.md"))
]
"""Only their links are followed: their blocks are pieces, without agent, data or store."""
LANGUAGES = {"python", "bash", "yaml", "toml", "json", "javascript", "text", "mermaid"}
PROGRAM = "bwrap"
"""What a block may need that is no distribution."""
KNOWN_NEEDS = {
    PROGRAM,
    *(path.name for path in REPOSITORY.glob("plugins/agl-*")),
    *("agent-framework-core", "agent-framework-openai", "agl-agentlightning", "agl-bestprompt"),
    *("anthropic", "autogen-agentchat", "autogen-ext", "openenv"),
    *("claude-agent-sdk", "crewai", "harbor", "langchain", "langchain-openai", "litellm", "mlflow"),
    *("gguf", "openai", "openai-agents", "opentelemetry-exporter-otlp-proto-http"),
    *("opentelemetry-util-genai", "prometheus-client", "pydantic-ai-slim", "pytest"),
    *("smolagents", "tensorboardX", "vllm", "trackio", "wandb"),
}
STUB_AGENT = "import agl\n\n@agl.rollout\ndef agent(task, llm=None) -> float:\n    return 1.0\n"

FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```$", re.M | re.S)
SETTING = re.compile(r'(\w+)="([^"]*)"')
PATH = re.compile(
    r"(?:core|libs|plugins|compat|tests|docs|examples|changelog\.d)(?:/[\w.{}*-]+)+/?"
)
ROOT_FILE = re.compile(r"(?:[A-Z]{4,}|noxfile|pyproject)\.(?:md|py|toml)|LICENSE")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    source: str
    needs: str | None
    file: str | None
    continues: bool
    nightly: bool

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(REPOSITORY)}:{self.line}"


def blocks_of(page: Path, text: str) -> list[Block]:
    found = []
    for match in FENCE.finditer(text):
        indent, info, source = match.groups()
        language, _, rest = info.strip().partition(" ")
        settings = dict(SETTING.findall(rest))
        words = SETTING.sub("", rest).split()
        line = text[: match.start()].count("\n") + 1
        unknown = {*settings, *words} - {"needs", "file", "continues", "nightly"}
        assert not unknown, f"{page}:{line}: a fence cannot say {unknown}"
        marks = {name: name in words for name in ("continues", "nightly")}
        given = {name: settings.get(name) for name in ("needs", "file")}
        source = re.sub(f"^{indent}", "", source, flags=re.M)
        found.append(Block(page, line, language, source, **given, **marks))
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page, page.read_text())]


def blocks(language: str) -> list[object]:
    plugins, nightly = [pytest.mark.plugins], [pytest.mark.nightly, pytest.mark.timeout(3600)]
    return [
        pytest.param(b, id=b.name, marks=plugins * bool(b.needs) + nightly * b.nightly)
        for b in BLOCKS
        if b.language == language
    ]


def missing(needs: str | None) -> str | None:
    """Why a block that needs this cannot run here, or None."""
    for name in (needs or "").split():
        if name == PROGRAM and shutil.which(name):
            continue
        try:
            metadata.distribution(name)
        except metadata.PackageNotFoundError:
            return f"needs {name}, which is not here"
    return None


def source_with_predecessors(block: Block, page_blocks: list[Block]) -> str:
    chain = [block]
    for earlier in reversed([b for b in page_blocks if b.line < block.line]):
        if not chain[0].continues:
            break
        if earlier.language == "python":
            chain.insert(0, earlier)
    assert not chain[0].continues, f"{block.name}: continues what?"
    return "\n".join(b.source for b in chain)


def write_files(folder: Path, page_blocks: list[Block]) -> None:
    for block in page_blocks:
        if block.file is not None:
            (folder / block.file).write_text(block.source)


def run_python(source: str, folder: Path, page_blocks: list[Block], timeout: int = 250) -> None:
    """Run a script as a user would, in a folder that has the page's files; any warning fails."""
    write_files(folder, page_blocks)
    script = folder / "example.py"
    script.write_text(source)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AGL_")}
    environment["AGL_STRICT_PLUGINS"] = "1"
    done = python("-W", "error", script, cwd=folder, env=environment, timeout=timeout)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    expected = re.findall(r"^ *#> ?(.*)$", source, re.M)
    if expected:
        assert done.stdout.splitlines() == expected


def check_yaml(source: str, folder: Path, page_blocks: list[Block]) -> None:
    """Check a configuration, or a part of one, as ``agl run`` does before it starts anything."""
    from agl_runs.config.file import check_config, load_config

    write_files(folder, page_blocks)
    values = yaml.safe_load(source)
    if not {"agent", "environment"} & values.keys():
        (folder / "stub_agent.py").write_text(STUB_AGENT)
        values = {"agent": "stub_agent:agent", "algorithm": "baseline", **values}
    (folder / "agl.yaml").write_text(yaml.safe_dump(values))
    check_config(load_config(folder / "agl.yaml"), run_dir=folder / "run")


@pytest.mark.parametrize("block", blocks("python"))
def test_python_block_runs(block, tmp_path):
    if reason := missing(block.needs):
        pytest.skip(reason)
    page_blocks = [b for b in BLOCKS if b.page == block.page]
    source = source_with_predecessors(block, page_blocks)
    run_python(source, tmp_path, page_blocks, 3500 if block.nightly else 250)


@pytest.mark.parametrize("block", blocks("yaml"))
def test_yaml_block_is_a_valid_configuration(block, tmp_path, monkeypatch, own_modules):
    if reason := missing(block.needs):
        pytest.skip(reason)
    monkeypatch.chdir(tmp_path)
    for variable in re.findall(r"\$\{(\w+)\}", block.source):
        monkeypatch.setenv(variable, "set by the test")
    check_yaml(block.source, tmp_path, [b for b in BLOCKS if b.page == block.page])


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(b, id=b.name)
        for b in BLOCKS
        if b.language == "yaml" and b.file and b.needs is None
    ],
)
def test_configuration_file_of_a_page_runs_with_the_other_files(block, tmp_path):
    write_files(tmp_path, [b for b in BLOCKS if b.page == block.page])
    code = "from agl.cli import main; main()"
    words = ("-W", "error", "-c", code, "dev", block.file, "strategy=shm")
    done = python(*words, cwd=tmp_path, timeout=250)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", [*blocks("toml"), *blocks("json")])
def test_data_block_parses(block):
    lines = block.source.splitlines() if (block.file or "").endswith(".jsonl") else [block.source]
    for text in lines:
        assert (tomllib.loads if block.language == "toml" else json.loads)(text)


@pytest.mark.parametrize("block", blocks("bash"))
def test_agl_commands_of_bash_blocks_exist(block):
    if reason := missing(block.needs):
        pytest.skip(reason)
    import click

    from agl.cli import cli

    assert isinstance(cli, click.Group)
    context = click.Context(cli)
    for line in re.sub(r"\\\n", " ", block.source).splitlines():
        words = line.split("#")[0].split()
        if "agl" not in words:
            continue
        verb, *rest = words[words.index("agl") + 1 :]
        command = cli.get_command(context, verb)
        assert command is not None, f"there is no 'agl {verb}'"
        if isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
            command = command.get_command(click.Context(command), rest[0]) or command
        options = {name for p in command.params for name in p.opts} | {"--help"}
        used = {word.split("=")[0] for word in rest if word.startswith("--")}
        assert used <= options, f"'agl {verb}' has no {used - options}"


def test_marks_are_of_the_known_set_and_no_block_hides_from_the_others():
    marked = {b.name: b.needs for b in BLOCKS if b.needs is not None}
    assert {name for needs in marked.values() for name in needs.split()} <= KNOWN_NEEDS, marked
    for block in BLOCKS:
        assert block.language in LANGUAGES, f"{block.name}: language {block.language!r}"
        if block.language in ("text", "mermaid"):
            assert not re.search(r"^(import|from) ", block.source, re.M), (
                f"{block.name}: Python under another name"
            )
    runnable = [b for b in BLOCKS if b.language == "python" and b.needs is None]
    assert len(runnable) >= 30


@pytest.mark.parametrize(
    "page", [*PAGES, *PLUGIN_PAGES], ids=lambda page: str(page.relative_to(REPOSITORY))
)
def test_links_and_named_paths_exist(page):
    text = FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path) if path else page
        assert linked.exists(), f"{page.name}: the link {target} leads nowhere"
        if anchor:
            assert anchor in anchors(linked), f"{page.name}: {target}: no such heading"
    for code in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text):
        if PATH.fullmatch(code) or ROOT_FILE.fullmatch(code):
            found = any(REPOSITORY.glob(code.rstrip("/"))) if "*" in code else False
            # The pages that follow a rollout and a reward name files from the core's sources on.
            found = found or (REPOSITORY / "core/src/agl" / code).is_file()
            assert found or (REPOSITORY / code).exists(), f"{page.name}: there is no {code}"


def test_every_picture_stands_on_a_page():
    folder = REPOSITORY / "docs"
    kept = {one for one in folder.rglob("*") if one.suffix in (".jpg", ".png", ".svg")}
    shown = {
        (page.parent / target).resolve()
        for page in [*PAGES, *PLUGIN_PAGES]
        for target in re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", page.read_text())
    }
    assert kept
    assert kept - shown == set()


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.M)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize(
    "source", ["1 / 0", "import warnings\nwarnings.warn('old')", "print(2)\n#> 3\n"]
)
def test_broken_python_block_is_noticed(source, tmp_path):
    with pytest.raises(AssertionError):
        run_python(source, tmp_path, [])


def test_broken_yaml_block_is_noticed(tmp_path, own_modules):
    from agl.errors import ConfigError

    with pytest.raises(ConfigError, match="n_epoch"):
        check_yaml("algorithm: {type: baseline, n_epoch: 2}", tmp_path, [])


def test_fences_are_read():
    text = (
        '# Page\n\n```python needs="agl-apo" continues\nx = 1\n```\n'
        "\n- item\n\n  ```yaml\n  a: 1\n  ```\n"
    )
    first, second = blocks_of(REPOSITORY / "README.md", text)
    read = (first.line, first.language, first.needs, first.continues)
    assert read == (3, "python", "agl-apo", True)
    assert (second.language, second.source) == ("yaml", "a: 1\n")
    with pytest.raises(AssertionError, match="skip"):
        blocks_of(REPOSITORY / "README.md", "```python skip\n```\n")


def test_the_trainer_of_the_docs_is_short():
    (trainer,) = [block for block in BLOCKS if block.file == "reinforce.py"]
    assert len(trainer.source.splitlines()) <= 60
