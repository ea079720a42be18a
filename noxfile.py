"""Every check, one session each; ``nox -l`` lists them."""

import argparse
import os
import sys
from pathlib import Path

import nox

nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["lint", "imports", "types", "tests"]

# The pinned build is what we test; a machine whose pip finds a CPU build of it gets that one.
TORCH = "torch==2.13.0"
TRL = "trl==1.16.0"
OPENAI = "openai>=2,<4"
ANTHROPIC = "anthropic>=1,<3"
TEST_TOOLS = [
    "pytest>=8.3",
    "pytest-asyncio>=0.25",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "hypothesis>=6.120",
    OPENAI,
    "opentelemetry-exporter-otlp-proto-http>=1.35",
    "build>=1.2",
    "hatchling>=1.27",
    "numpy>=2",
    "pyarrow>=17",
    "filelock>=3.16",
]
# Three on two cores: tests wait more than they compute.
PARALLEL = ("-n", "3", "--dist", "worksteal")
TRAINING = ("-n", "2", "--dist", "worksteal")
# What `docs/reference/frameworks.md` is about; pinned, as that page names versions.
TRACED_FRAMEWORKS = [
    "openai==3.52.0",
    "openai-agents==0.24.0",
    "langchain==1.4.7",
    "langchain-openai==1.7.3",
    "langgraph==1.2.22",
    "pydantic-ai-slim[openai]==2.68.0",
    "smolagents==1.26.0",
    "autogen-agentchat==0.7.5",
    "autogen-ext[openai]==0.7.5",
    "anthropic==2.11.0",
    "claude-agent-sdk==0.2.186",
    # Never the package `agent-framework`, which brings 200 others.
    "agent-framework-core==1.23.0",
    "agent-framework-openai==1.17.0",
]
# AutoGen 0.7.5 does not load with mcp 2.
MCP = "mcp>=1.19,<2"
INSTRUMENTATIONS = [
    *(
        f"openinference-instrumentation-{name}"
        for name in (
            *("openai-agents", "langchain", "anthropic", "smolagents", "autogen-agentchat"),
            *("claude-agent-sdk", "agent-framework", "mcp"),
        )
    ),
    *(
        f"opentelemetry-instrumentation-genai-{name}"
        for name in ("openai-agents", "langchain", "anthropic", "smolagents")
    ),
]
UNSLOTH = ["unsloth==2026.10.9", "unsloth_zoo==2026.10.9"]
UNSLOTH_NEEDS = ["adapters", "gateway", "torch", "unsloth"]
PLUGINS = sorted(str(path.parent) for path in Path("plugins").glob("*/pyproject.toml"))
# The core with what its extras bring; no index has our packages.
CORE = ("./core[bench,testing,parquet,jinja]", "./libs/agl-bench", "./libs/agl-testing")
LIBS = ("libs/agl-bench", "libs/agl-learning", "libs/agl-testing")
LEARNING = "./libs/agl-learning"


def install_all(session: nox.Session, *options: str) -> None:
    """Install torch first (see TORCH), then the core and every plugin as a user would."""
    session.install(TORCH)
    packages = [*CORE, LEARNING, *(f"./{plugin}" for plugin in PLUGINS)]
    session.install(*(part for package in packages for part in (*options, package)))


@nox.session
def demo(session: nox.Session) -> None:
    """An agent learns, on this machine, in about a minute and a half."""
    install_all(session)
    session.install("matplotlib>=3.9", OPENAI)
    session.run("python", "examples/quickstart/quickstart.py", *session.posargs)


@nox.session(name="bench-store")
def bench_store(session: nox.Session) -> None:
    """The store under load; -- --peer PYTHON measures an agentlightning 0.3.0 beside it."""
    session.install(*CORE)
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", help="the interpreter of an environment with agentlightning")
    options, others = parser.parse_known_args(session.posargs)
    peer_command = peer = ()
    if options.peer:
        peer = ("--peer", options.peer)
        peer_command = ("--peer", str(Path(options.peer).with_name("agl")))
    session.run("python", "benchmarks/store_cycle.py", "--rounds", "2", *peer_command)
    session.run("python", "benchmarks/store_workloads.py", *peer, *others)


@nox.session(name="bench-gateway")
def bench_gateway(session: nox.Session) -> None:
    """What the gateway adds to model calls; -- --peer PYTHON measures 0.3.0's LLMProxy beside it.

    With -- --faults, 10,000 calls that go wrong in every way instead, and their records counted;
    with -- --memory, whether a million recorded calls leave the gateway's memory as it was.
    """
    session.install(*CORE, LEARNING, "./plugins/agl-gateway")
    kind = next((name for name in ("faults", "memory") if f"--{name}" in session.posargs), None)
    others = [argument for argument in session.posargs if argument != f"--{kind}"]
    session.run("python", f"benchmarks/gateway{f'_{kind}' if kind else ''}.py", *others)


@nox.session(name="bench-rows")
def bench_rows(session: nox.Session) -> None:
    """How fast spans become training rows, and how many rollouts two credit rules need."""
    session.install(*CORE, LEARNING, "./plugins/agl-adapters")
    session.run("python", "benchmarks/rows.py", *session.posargs)
    session.run("python", "benchmarks/credit_toy.py")


@nox.session(name="bench-apo")
def bench_apo(session: nox.Session) -> None:
    """Prompt optimisers on a planted problem, and prompt runs that are killed.

    -- --peer PYTHON measures 0.3.0's APO beside them.
    """
    session.install(*CORE, LEARNING, "./plugins/agl-adapters", "./plugins/agl-apo[gepa]", OPENAI)
    session.run("python", "benchmarks/apo_crash.py", "--kills", "20")
    session.run("python", "benchmarks/apo.py", *session.posargs)


@nox.session
def crash(session: nox.Session) -> None:
    """Kill server and runners 200 times under load, and count what was lost."""
    session.install(*CORE)
    session.run("python", "benchmarks/crash.py", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """All tests: the core with only the core installed, then everything with the plugins.

    -- -n 0 runs them one after the other.
    """
    session.install(*CORE, LEARNING, *TEST_TOOLS)
    environment = {
        "AGL_STRICT_PLUGINS": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    core_tests = ["tests/core", "tests/libs", "tests/contract", "tests/house"]
    session.run("pytest", *PARALLEL, *core_tests, *session.posargs, env=environment)
    install_all(session)
    # TRL: our loss and gradients are compared with its.
    session.install("matplotlib>=3.9", TRL, "schemathesis>=4", ANTHROPIC)
    session.install("./plugins/agl-apo[gepa]")
    # The contract and house tests again: now the plugins' components and docs take part.
    session.run(
        "pytest", *PARALLEL, "tests/plugins", "tests/acceptance", "tests/seams", "tests/house",
        "tests/contract", *session.posargs, env=environment,
    )  # fmt: skip


@nox.session(python=["3.12", "3.13"])
def pythons(session: nox.Session) -> None:
    """The core on newer Pythons than the one that everything is tested with; not a part of CI."""
    session.install(*CORE, LEARNING, *TEST_TOOLS)
    tests = ["tests/core", "tests/libs", "tests/contract", "tests/house"]
    session.run("pytest", *PARALLEL, *tests, *session.posargs, env={"AGL_STRICT_PLUGINS": "1"})


@nox.session
def litellm(session: nox.Session) -> None:
    """Models of other providers. LiteLLM wants older packages than the rest is tested with."""
    session.install(*CORE, LEARNING, "./plugins/agl-gateway[litellm]", *TEST_TOOLS[:3])
    session.run("pytest", "tests/plugins/gateway/test_litellm.py", *session.posargs)


@nox.session(name="remote-trainers")
def remote_trainers(session: nox.Session) -> None:
    """Azure OpenAI and Tinker: their SDKs against servers on this machine. Needs no account."""
    packages = [*CORE, LEARNING, "./plugins/agl-adapters", "./plugins/agl-gateway"]
    session.install(*packages, "./plugins/agl-azure", "./plugins/agl-tinker", *TEST_TOOLS[:4])
    environment = {"AGL_STRICT_PLUGINS": "1", "HF_HUB_OFFLINE": "1"}
    session.run(
        "pytest", *PARALLEL, "tests/plugins/azure", "tests/plugins/tinker",
        "tests/seams/test_table_finetuning.py", *session.posargs, env=environment,
    )  # fmt: skip


TRACER_TESTS = "tests/plugins/tracers/real"
TRACERS = ("otel", "agentops", "openinference", "otel-genai", "weave")
TRACER_PACKAGES = (
    *CORE,
    LEARNING,
    "./plugins/agl-adapters",
    "./plugins/agl-gateway",
    "./plugins/agl-tracers[agentops,openinference,otel-genai,weave]",
)


@nox.session
def tracers(session: nox.Session) -> None:
    """Every tracer on the agent frameworks of today; the page says what each captures of which.

    The frameworks' own warnings are not ours to mend. One process per tracer: instrumentations are
    of a process. Not a part of CI, which it would make longer by three minutes. The frameworks
    that cannot be installed beside the others have sessions of their own, which come next.
    """
    install_tracers(session)
    run_with_tracers(session)
    session.notify("tracers-crewai")
    session.notify("tracers-page")


@nox.session(name="tracers-crewai")
def tracers_crewai(session: nox.Session) -> None:
    """CrewAI, which wants an older openai and pydantic than the other frameworks."""
    session.install(
        *TRACER_PACKAGES, *TEST_TOOLS[:3], "crewai==1.15.30", "openinference-instrumentation-crewai"
    )
    # Weave asks every object that it meets for attributes, and in a crew meets `pytest.mark`, which
    # under --strict-markers ends the test.
    options = ("-o", "addopts=--import-mode=importlib", "-k", "CrewAI")
    tests = [f"{TRACER_TESTS}/test_{name}.py" for name in ("frameworks", "howto")]
    run_with_tracers(session, *tests, *options)


@nox.session(name="tracers-page", venv_backend="none")
def tracers_page(session: nox.Session) -> None:
    """Write docs/reference/frameworks.md from what the sessions tracers and tracers-* captured."""
    session.run(sys.executable, "docs/generate_tracers.py", captured_folder(session))


@nox.session(name="tracers-short")
def tracers_short(session: nox.Session) -> None:
    """Every framework through the gateway; every tracer on the OpenAI client and LangGraph.

    Writes no page.
    """
    install_tracers(session)
    names = ("contract", "concurrency", "tracers", "langgraph")
    alone = [f"{TRACER_TESTS}/test_{name}.py" for name in names]
    for tracer in TRACERS:
        tests = [TRACER_TESTS] if tracer == "otel" else alone
        session.run("pytest", "-W", "default", *tests, "--tracer", tracer, *session.posargs)


def install_tracers(session: nox.Session) -> None:
    """The tracers with their backends, and the frameworks with their instrumentations."""
    session.install(*TRACER_PACKAGES, *TEST_TOOLS[:3], *TRACED_FRAMEWORKS, *INSTRUMENTATIONS)


def run_with_tracers(session: nox.Session, *tests: str) -> None:
    """Run tests once per tracer, and keep what they captured."""
    for tracer in TRACERS:
        path = f"{captured_folder(session)}/{session.name}.{tracer}.json"
        session.run(
            "pytest", "-W", "default", *(tests or (TRACER_TESTS,)), "--tracer", tracer,
            "--captured", path, *session.posargs,
        )  # fmt: skip


def captured_folder(session: nox.Session) -> str:
    """Where the sessions leave what they captured for the page."""
    folder = Path(session.cache_dir) / "captured"
    folder.mkdir(exist_ok=True)
    return str(folder)


@nox.session(name="verl-cpu")
def verl_cpu(session: nox.Session) -> None:
    """agl-verl with the real verl, without a GPU; -- --long for every trainer and estimator.

    A training run takes two minutes on two idle cores, most of it imports; here are two of them,
    with --long some thirty more. Packages as in constraints/cpu.txt, and beside them an environment
    with the core alone, for an agent.
    """
    session.install(TORCH)
    session.install(
        "-c", "plugins/agl-verl/constraints/cpu.txt", TORCH, *CORE, LEARNING,
        "./plugins/agl-adapters", "./plugins/agl-gateway", "./plugins/agl-verl[backend]",
        *TEST_TOOLS[:5], OPENAI,
    )  # fmt: skip
    # Not session.create_tmp(): it sets TMPDIR to a folder in the environment, where Ray's workers
    # refuse to start.
    agent = Path(session.virtualenv.location).resolve() / "agent"
    session.run("python", "-m", "venv", "--clear", str(agent))
    python = str(agent / "bin" / "python")
    session.run(python, "-m", "pip", "install", "-q", "./core", OPENAI, external=True)
    session.install("pyright>=1.1.400")
    session.run("pyright", "-p", "plugins/agl-verl")
    if "--long" in session.posargs:
        # The agent of examples/spider.
        session.install(*(name for name in TRACED_FRAMEWORKS if name.startswith("lang")))
    # verl, Ray and transformers warn; their warnings are not ours to mend.
    session.run(
        "pytest", "-n", "2", "--dist", "loadgroup", "-W", "default", "tests/plugins/verl/real",
        *session.posargs,
        env={"AGL_CORE_PYTHON": python, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip


@nox.session(name="sft-trl")
def sft_trl(session: nox.Session) -> None:
    """SFT and DPO with TRL on a CPU: a step against one written by hand, whole runs, a kill.

    And the tiny math agent of examples/unsloth.
    """
    install_all(session)
    session.install("./plugins/agl-unsloth[trl]", TRL, *TEST_TOOLS[:4])
    session.install(*(name for name in TRACED_FRAMEWORKS if name.startswith("openai")), MCP)
    train_with(
        session, "trl", "tests/seams/test_table_finetuning.py",
        "tests/examples/test_unsloth.py::test_tiny_model_is_fine_tuned_all_in_one",
    )  # fmt: skip


@nox.session(venv_backend="virtualenv")  # it calls pip, which environments of uv's do not have
def unsloth(session: nox.Session) -> None:
    """The same with Unsloth, whose pins of TRL and transformers are older than the others'.

    uv, as its pin of certifi has to be overridden, and as PyPI's torchvision is a CUDA build that
    Unsloth cannot use with another torch; see docs/howto/fine-tune.md.
    """
    session.install(TORCH, "uv")
    overrides = Path(session.create_tmp()) / "overrides.txt"
    overrides.write_text(f"certifi>=2026.10.18\n{TORCH}\n")
    # uv does not read pip's configuration; what pip finds torch in, uv shall, too.
    session.run(
        "uv", "pip", "install", "--python", session.virtualenv.bin + "/python",
        "--override", str(overrides), *find_links(session), *UNSLOTH,
    )  # fmt: skip
    session.run("pip", "uninstall", "--yes", "torchvision")
    session.install(*CORE, LEARNING, *(f"./plugins/agl-{name}" for name in UNSLOTH_NEEDS))
    session.install(*TEST_TOOLS[:4], OPENAI)
    train_with(session, "unsloth")


def train_with(session: nox.Session, engine: str, *more: str) -> None:
    """Run the tests that train. The libraries' own warnings are not ours to mend."""
    session.run(
        "pytest", *TRAINING, "-W", "default", "tests/plugins/unsloth/real", *more,
        "--engine", engine, "--durations=0", *session.posargs,
        env={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip


def find_links(session: nox.Session) -> list[str]:
    """The folders of wheels that pip is configured with, as options for uv."""
    found = session.run(
        "pip", "config", "get", "global.find-links", silent=True, success_codes=[0, 1]
    )
    folders = [line for line in str(found).split() if Path(line).is_dir()]
    return [option for folder in folders for option in ("--find-links", folder)]


@nox.session
def examples(session: nox.Session) -> None:
    """The agents of examples/ with their frameworks, MCP servers and tiny models; on a CPU.

    -- -m "not slow" leaves out what trains. Not a part of CI, which it would make longer by five
    minutes. The frameworks' own warnings are not ours to mend.
    """
    install_all(session)
    session.install("./plugins/agl-unsloth[trl]", TRL, "pyarrow>=17")
    used = [name for name in TRACED_FRAMEWORKS if name.startswith(("openai", "lang", "autogen"))]
    session.install(*TEST_TOOLS[:3], *used, MCP)
    session.run(
        "pytest", "-W", "default", "tests/examples", "--durations=0", *session.posargs,
        env={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip


@nox.session(name="calc-x")
def calc_x(session: nox.Session) -> None:
    """The AutoGen agent of examples/calc_x learns with the real verl; installed as its README says.

    AutoGen and what is newest under verl do not agree on protobuf: pip has to look for a set that
    fits both.
    """
    session.install(TORCH)
    session.install(
        *CORE, LEARNING, "./plugins/agl-adapters", "./plugins/agl-gateway",
        "./plugins/agl-verl[backend]", "pyarrow>=17", MCP, *TEST_TOOLS[:3],
        *(name for name in TRACED_FRAMEWORKS if name.startswith("autogen")),
    )  # fmt: skip
    session.run(
        "pytest", "-W", "default", "tests/examples/test_calc_x.py", "--durations=5",
        *session.posargs, env={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: style, and the layout of the code."""
    session.install("ruff>=0.17,<0.18")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def imports(session: nox.Session) -> None:
    """lint-imports: a module imports only what is under it."""
    session.install("import-linter>=2.5")
    sources = os.pathsep.join(f"{package}/src" for package in ["core", *LIBS, *PLUGINS])
    session.run("lint-imports", env={"PYTHONPATH": sources})


@nox.session
def types(session: nox.Session) -> None:
    """pyright: strict in the core, standard in the plugins."""
    # Editable: pyright must not see every class twice, here and in site-packages.
    install_all(session, "--editable")
    session.install("--editable", "./plugins/agl-unsloth[trl]", TRL)
    session.install("pyright>=1.1.400", OPENAI, "pytest>=8.3", "pytest-asyncio>=0.25")
    session.run("pyright")


@nox.session
def dist(session: nox.Session) -> None:
    """Build every package to a wheel and a source archive in dist/."""
    session.install("build")
    for package in ["core", *LIBS, *PLUGINS]:
        session.run("python", "-m", "build", "--outdir", "dist", package)
