"""``agl launch``: what it writes is what the clusters' own schemas take, and holds no secret."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from tests.run_project import CONFIG, refuses, succeeds
from tests.waiting import free_port

from agl_http.tokens import Tokens
from agl_runs.local_runs import runs_here

SYSTEMS = ("--slurm", "--k8s", "--skypilot")
TOKEN = "a-token-of-this-test"
RAY = "strategy={type: ray, address: auto, resources: {cpu: 0.5, gpu: 0.25}}"
README = Path(__file__).parents[3] / "plugins/agl-launch/README.md"
MANY = ("--name", "My Run", "--machines", "3", "--cpus", "8", "--memory", "64")
OPTIONS = {"few": (), "many": (*MANY, "--gpus", "2", "--grace", "60")}


@pytest.fixture
def file(project: Path) -> Path:
    """That of a run which learns for three steps, by the strategy that can be launched."""
    text = CONFIG.replace("strategy: shm", "strategy: {type: cs, graceful_timeout: 1}")
    (project / "agl.yaml").write_text(text + "runners: 1\n")
    return project / "agl.yaml"


def launched(agl, *arguments: str) -> list[dict]:
    text = succeeds(agl, "launch", "agl.yaml", *arguments).out
    return [one for one in yaml.safe_load_all(text) if one]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_kubernetes_takes_the_jobs(agl, file, options):
    validate = pytest.importorskip("kubernetes_validate").validate
    found = launched(agl, "--k8s", *options)
    for one in found:
        validate(one, "1.37", strict=True)
    for job in found[2:]:  # a wrong request is not tried again
        (wrong,) = [one for one in job["spec"]["podFailurePolicy"]["rules"] if "onExitCodes" in one]
        assert (wrong["action"], wrong["onExitCodes"]["values"][0]) == ("FailJob", 2)
    kinds = [one["kind"] for one in found]
    assert kinds == ["PersistentVolumeClaim", "Service", "Job", "Job"]
    claim, service, algorithm, runner = found
    template = algorithm["spec"]["template"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert template["spec"]["volumes"][0]["persistentVolumeClaim"] == {
        "claimName": claim["metadata"]["name"]
    }
    assert runner["spec"]["completions"] == (3 if options else 1)
    (container,) = runner["spec"]["template"]["spec"]["containers"]
    hosts = [one["value"] for one in container["env"] if one["name"] == "AGL_SERVER_HOST"]
    assert hosts == [service["metadata"]["name"]]
    assert service["metadata"]["name"] == ("my-run" if options else claim["metadata"]["name"][:-5])


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_ray_job_has_pods_that_kubernetes_takes(agl, file, options):
    # The schema of RayJob itself is in no package that can be had here; its names are those of the
    # operator's sources, 1.4.
    validate = pytest.importorskip("kubernetes_validate").validate
    claim, job, command = launched(agl, "--k8s", "strategy={type: ray}", *options)
    own = {"entrypoint", "shutdownAfterJobFinishes", "backoffLimit", "rayClusterSpec"}
    group = {"rayStartParams", "template"}
    workers = {*group, "groupName", "replicas", "minReplicas", "maxReplicas"}
    cluster = job["spec"]["rayClusterSpec"]
    assert job["spec"].keys() == own
    assert (cluster["headGroupSpec"].keys(), cluster["workerGroupSpecs"][0].keys()) == (
        group,
        workers,
    )
    pods = [one["template"] for one in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    for one in (claim, command, *({"apiVersion": "v1", "kind": "Pod", **pod} for pod in pods)):
        validate(one, "1.37", strict=True)
    assert job["kind"] == "RayJob"
    assert "agl run agl.yaml 'strategy={type: ray}' run_dir=/runs/" in command["data"]["run.sh"]


@pytest.mark.parametrize("gpus", [(), ("--gpus", "H100:2")], ids=["few", "many"])
def test_bash_takes_the_script(agl, file, gpus):
    options = (*MANY, "--hours", "12", *gpus) if gpus else ()
    succeeds(agl, "launch", "--slurm", "agl.yaml", *options, "-o", "run.sh")
    assert subprocess.run(["bash", "-n", "run.sh"]).returncode == 0
    lines = re.findall("^#SBATCH --gpus-per-node=(.*)$", Path("run.sh").read_text(), re.M)
    assert lines == (["H100:2"] if gpus else [])


def test_readme_has_commands_that_work(agl, file):
    lines = re.findall("^agl (launch .*?)(?: &&.*)?$", README.read_text(), re.M)
    assert len(lines) == 3
    for line in lines:
        succeeds(agl, *shlex.split(line))


@pytest.mark.parametrize(
    ("system", "overrides"),
    [*((one, ()) for one in SYSTEMS), ("--k8s", (RAY, "--gpus", "1"))],
    ids=[*SYSTEMS, "ray"],
)
def test_option_is_in_the_file_or_refused(agl, file, system, overrides):
    gpus = "H100:2" if system == "--skypilot" else "2"
    options = {"name": "other", "machines": "3", "cpus": "8", "memory": "64", "gpus": gpus}
    options |= {"grace": "60", "hours": "12", "image": "other"}
    call = ("launch", system, "agl.yaml", *overrides)
    plain = succeeds(agl, *call).out
    for name, value in options.items():
        result = agl(*call, f"--{name}", value)
        is_refused = result.code == 2 and f"--{name} is for" in result.err
        assert is_refused or (result.code == 0 and result.out != plain), (name, result.err)


def test_workers_of_ray_have_the_gpus_that_runners_take(agl, file):
    for strategy, gpus in ((RAY, 1), ("strategy={type: ray}", 0)):
        _, job, _ = launched(agl, "--k8s", strategy, "--gpus", "1")
        (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
        (container,) = group["template"]["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == gpus


@pytest.mark.parametrize(
    "wrong",
    [
        "agent=nomodule:x",
        "algorithm={type: gpro}",
        "algorithm.nonsense=1",
        "algorithm={type: baseline, n_epochs: -1}",
        "runners=0",
        "store=mem0ry",
        "strategy={type: cs, bogus: 1}",
        "train=none.jsonl",
    ],
)
def test_what_run_refuses_is_refused_unless_it_is_not_checked(agl, file, wrong):
    said = agl("config", "agl.yaml", wrong)
    assert said.code == 2
    result = agl("launch", "--k8s", "agl.yaml", wrong)
    note, _, reason = result.err.partition("\n")
    assert (result.code, result.out, reason) == (2, "", said.err)
    assert "--no-check writes the file" in note
    unchecked = succeeds(agl, "launch", "--k8s", "--no-check", "agl.yaml", wrong).out
    assert shlex.join(["agl", "run", "agl.yaml", wrong]) in unchecked


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize(
    ("store", "goes"),
    [
        ("memory", SYSTEMS),
        ("{type: memory}", SYSTEMS),
        ("{type: sqlite, path: my.db}", ("--k8s", "--skypilot")),
        ("{type: postgres, path: mine}", ("--k8s", "--skypilot")),
        ("{type: sqlite, path: /runs/my.db}", ()),
        ("{type: sqlite}", ()),
        ("postgres", ()),
        ("postgresql://here/agl", ()),
    ],
)
def test_store_that_goes_with_its_machine_is_refused(agl, file, system, store, goes):
    call = ("launch", system, "agl.yaml", f"store={store}")
    if system in goes:
        refuses(agl, "agl.yaml: store ends with", *call)
    else:
        succeeds(agl, *call)


@pytest.mark.parametrize("system", SYSTEMS)
def test_secret_of_the_file_stands_in_no_written_file(agl, file, monkeypatch, system):
    monkeypatch.setenv("MY_KEY", "a-secret-text")
    with file.open("a") as more:
        more.write("resources: {llm: {type: llm, endpoint: x, model: m, api_key: '${MY_KEY}'}}\n")
    text = succeeds(agl, "launch", system, "agl.yaml").out
    assert "a-secret-text" not in text
    assert ("MY_KEY" in text) == (system != "--slurm")  # where the environment goes with the job


def test_runners_of_kubernetes_have_a_secret_without_what_the_algorithm_needs(
    agl, file, monkeypatch
):
    monkeypatch.setenv("AGENT", "runs_agent:agent")
    for name in ("MY_KEY", "DATABASE"):
        monkeypatch.setenv(name, "a-secret-text")
    with file.open("a") as more:
        more.write("store: postgresql://agl:${DATABASE}@here/agl\n")
        more.write("resources: {llm: {type: llm, endpoint: x, model: m, api_key: '${MY_KEY}'}}\n")
    text = succeeds(agl, "launch", "--k8s", "agl.yaml", "--name", "r", "agent=${AGENT}").out
    head, *documents = text.split("\n---\n")
    made = dict(re.findall("generic (r-[a-z]+) (.*)", head))
    names = {key: re.findall(r"--from-literal=(\w+)=", value) for key, value in made.items()}
    assert names == {
        "r-secrets": ["AGL_SERVER_TOKEN", "AGENT", "DATABASE", "MY_KEY"],
        "r-runner": ["AGL_SERVER_TOKEN", "AGENT"],
    }
    assert '"$(agl token runner)"' in made["r-runner"]
    assert ["name: r-secrets" in one for one in documents[1:]] == [True, False]
    assert ["name: r-runner" in one for one in documents[1:]] == [False, True]
    # With that alone, a pod's command finds nothing wrong.
    (command,) = re.findall("agl run (.*) & runner", documents[-1])
    for name in ("MY_KEY", "DATABASE"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AGL_CURRENT_ROLE", "runner")
    succeeds(agl, "config", *shlex.split(command))


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("say for what", ["agl.yaml"]),
        ("agl.yaml: strategy is 'shm'. Expected 'cs'", ["--k8s", "agl.yaml", "strategy=shm"]),
        ("strategy is 'ray'", ["--slurm", "agl.yaml", "strategy.type=ray"]),
        ("strategy.role: the launched file", ["--slurm", "agl.yaml", "strategy.role=both"]),
        ("one of --slurm, --k8s and", ["--k8s", "--slurm", "agl.yaml"]),
        ("a number; write a nodeSelector", ["--k8s", "agl.yaml", "--gpus", "a100:1"]),
        ("address: the launched", ["--k8s", "agl.yaml", "strategy={type: ray, address: local}"]),
        ("server_host: the", ["--k8s", "agl.yaml", "strategy={type: ray, server_host: 127.0.0.1}"]),
        (
            "resources.gpu: an actor takes 1, a worker of the file has 0",
            ["--k8s", "agl.yaml", RAY.replace("0.25", "1")],
        ),
        ("resources.mine: an", ["--k8s", "agl.yaml", "strategy={type: ray, resources: {mine: 1}}"]),
        ("algorithm.api_key: a secret would", ["--k8s", "agl.yaml", "algorithm.api_key=abc"]),
        ("store is another server's", ["--k8s", "agl.yaml", "store=http://a:1"]),
        ("unknown key", ["--k8s", "agl.yaml", "nope=1"]),
        ("expected TYPE:NUMBER", ["--skypilot", "agl.yaml", "--gpus", "1"]),
        ("too short for --grace", ["--slurm", "agl.yaml", "--hours", "0.1"]),
        ("too short for --grace", ["--slurm", "agl.yaml", "--hours", "nan"]),
        ("is not in the range", ["--slurm", "agl.yaml", "--hours", "inf"]),
        ("expected a number, or TYPE", ["--slurm", "agl.yaml", "--gpus", "a b:1"]),
        (
            "algorithm: a secret would",
            ["--slurm", "agl.yaml", "algorithm={type: baseline, api_key: abc}"],
        ),
        ("run_dir: it is /runs/NAME", ["--k8s", "agl.yaml", "run_dir=here"]),
        ("has a line break", ["--k8s", "agl.yaml", "hooks=[]\n\n"]),
        ("is there, and agl launch has not written", ["--k8s", "agl.yaml", "-o", "agl.yaml"]),
        ("cannot be written", ["--k8s", "agl.yaml", "-o", "nowhere/run.yaml"]),
    ],
)
def test_what_cannot_be_launched_is_refused(agl, file, words, arguments):
    refuses(agl, words, "launch", *arguments)


def test_files_over_the_file_are_found_where_the_run_starts(agl, file):
    (file.parent / "big.yaml").write_text("runners: 3\n")
    os.chdir(file.parent.parent)  # a fixture goes back
    folder = file.parent.name
    for system, place in (("--k8s", ""), ("--skypilot", ""), ("--slurm", f"{folder}/")):
        call = ("launch", system, f"{folder}/agl.yaml", f"{folder}/big.yaml", "algorithm.steps=3")
        text = succeeds(agl, *call).out
        assert f"agl run {place}agl.yaml {place}big.yaml algorithm.steps=3" in text


def test_file_of_ours_is_known_by_its_first_lines_alone_and_written_anew(agl, file):
    Path("mine.txt").write_text("1\n2\nbeside what was written by agl launch\n")
    refuses(agl, "has not written it", "launch", "--k8s", "agl.yaml", "-o", "mine.txt")
    for machines in ("1", "2"):
        succeeds(agl, "launch", "--slurm", "agl.yaml", "--machines", machines, "-o", "run.sh")
    assert "--nodes=2\n" in Path("run.sh").read_text()


def test_run_dir_of_the_script_is_what_was_said_and_no_command(agl, file, monkeypatch):
    monkeypatch.setenv("MY_KEY", "a-secret-text")
    said = 'run_dir=/x/${MY_KEY}/$(touch pwned)"; touch pwned; "'
    succeeds(agl, "launch", "--slurm", "agl.yaml", said, "-o", "run.sh")
    text = Path("run.sh").read_text()
    assert "a-secret-text" not in text
    (line,) = re.findall("^  (agl run .*) --resume &$", text, re.M)
    found = subprocess.run(["bash", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True)
    assert found.stdout.splitlines()[-1] == said
    assert not Path("pwned").exists()


def test_odd_names_are_values_of_yaml(agl, file):
    folder = file.parent / "2 a: b#c"
    folder.mkdir()
    for path in file.parent.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    text = succeeds(agl, "launch", "--skypilot", f"{folder}/agl.yaml").out
    task = yaml.safe_load(text)
    assert (task["workdir"], task["name"]) == (str(folder), "agl-2-a-b-c")
    jobs = yaml.safe_load_all(succeeds(agl, "launch", "--k8s", "agl.yaml", "--image", "a: b#c").out)
    pods = [one["spec"]["template"]["spec"] for one in jobs if one["kind"] == "Job"]
    assert [one["containers"][0]["image"] for one in pods] == ["a: b#c"] * 2


@pytest.mark.parametrize("kind", ["--k8s", "--skypilot"])
def test_a_name_that_is_a_word_of_yaml_stays_a_name(agl, file, kind):
    text = succeeds(agl, "launch", kind, "agl.yaml", "--name", "true").out
    assert '"true"' in text
    assert not re.search("(name|value): *true *[,}\n]", text)


def test_two_long_names_stay_two(agl, file):
    jobs = [launched(agl, "--k8s", "--name", f"{'a' * 40}-{one}") for one in "12"]
    names = {one[0]["metadata"]["name"] for one in jobs}
    assert len(names) == 2
    assert max(map(len, names)) <= 63


class Shells:
    """Shell commands of launched files, as processes of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, str(free_port())
        self.begun: list[subprocess.Popen[str]] = []

    def start(self, text: str, **environment: str) -> subprocess.Popen[str]:
        # What the files say of machines and of waiting, as it is here.
        for there, here in (("/runs/", f"{self.folder}/"), (":4747", f":{self.port}")):
            text = text.replace(there, here)
        text = re.sub(r"PORT=\d+", f"PORT={self.port}", text).replace("sleep 10", "sleep 0.1")
        about = {"AGL_SERVER_TOKEN": TOKEN, **environment, "AGL_SERVER_PORT": self.port}
        process = subprocess.Popen(
            ["sh", "-c", text],
            env={**os.environ, **about},
            stderr=subprocess.STDOUT,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.begun.append(process)
        return process


@pytest.fixture
def shells(tmp_path):
    made = Shells(tmp_path)
    yield made
    for process in made.begun:
        process.kill()
        if not process.stdout.closed:  # the test has read it to its end
            process.communicate()


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_commands_of_kubernetes_run_a_run_through_a_pod_that_is_replaced(agl, file, shells):
    name = "127.0.0.1"
    secrets = {"r-secrets": {}, "r-runner": {"AGL_SERVER_TOKEN": Tokens(TOKEN).issue("runner")}}
    _, _, algorithm, runner = launched(agl, "--k8s", "algorithm.steps=3", "--name", "r")

    def start(job: dict) -> subprocess.Popen[str]:
        (container,) = job["spec"]["template"]["spec"]["containers"]
        values = {one["name"]: one["value"] for one in container["env"]}
        host = {"r": name, "0.0.0.0": name}[values["AGL_SERVER_HOST"]]
        text = container["args"][0].replace("http://r:", f"http://{name}:")
        (secret,) = [one["secretRef"]["name"] for one in container["envFrom"]]
        return shells.start(text, **values | secrets[secret] | {"AGL_SERVER_HOST": host})

    pod = start(runner)  # it waits for a store
    first = start(algorithm)
    metrics = shells.folder / "r/metrics.jsonl"
    while not metrics.exists():
        assert first.poll() is None, first.communicate()[0]
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)  # its machine died
    first.communicate()
    second = start(algorithm)
    output = second.communicate()[0]
    assert second.returncode == 0, output
    (run,) = runs_here(shells.folder / "r")
    assert (run.status, len(run.generations)) == ("finished", 2)
    assert len(metrics.read_text().splitlines()) == 3
    output = pod.communicate()[0]
    assert pod.returncode == 0, output  # a store that stays away is the run's end


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_commands_of_skypilot_run_a_run(agl, file, shells):
    (task,) = launched(agl, "--skypilot", "--machines", "2")
    own = {"SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1", "SKYPILOT_TASK_ID": "task"}
    text = task["run"].replace("0.0.0.0", "127.0.0.1")
    nodes = [shells.start(text, **own, SKYPILOT_NODE_RANK=str(n)) for n in range(2)]
    outputs = [node.communicate()[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    (run,) = runs_here(shells.folder / "task")
    assert run.status == "finished"
    # A machine that cannot import the agent says so, as others work without it.
    text = text.replace("agl run agl.yaml", "agl run agl.yaml agent=nowhere:x")
    lame = shells.start(text, **own, SKYPILOT_NODE_RANK="1")
    output = lame.communicate()[0]
    assert (lame.returncode, "no module 'nowhere'" in output) == (2, True)


WAITS = """#!{python}
import signal, time
from pathlib import Path

signals = []
signal.alarm(20)
signal.signal(signal.SIGTERM, lambda *_: signals.append(time.monotonic()))
Path("begun").touch()
while len(signals) < 2:
    time.sleep(0.01)
assert signals[1] - signals[0] > 0.5, signals
raise SystemExit(143)
"""


@pytest.mark.timeout(30)
def test_slurm_ends_an_algorithm_that_waits_for_runners_that_are_gone(agl, file):
    succeeds(agl, "launch", "--slurm", "agl.yaml", "--grace", "2", "-o", "run.sh")
    # The run waits for rollouts, and so ends at the second signal alone; each runner dies.
    Path("agl").write_text(WAITS.format(python=sys.executable))
    Path("srun").write_text("#!/bin/sh\nuntil [ -e begun ]; do sleep 0.1; done\nexit 1\n")
    Path("scontrol").write_text("#!/bin/sh\ntouch queued\n")
    for name in ("agl", "srun", "scontrol"):
        Path(name).chmod(0o755)
    about = {"PATH": f"{Path.cwd()}:{os.environ['PATH']}", "SLURM_JOB_ID": "1"}
    done = subprocess.run(["bash", "run.sh"], env={**os.environ, **about}, capture_output=True)
    assert done.returncode == 143, done
    assert not Path("queued").exists()
