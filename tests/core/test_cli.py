"""The command line: data on stdout, one sentence on stderr, exit codes 0, 1 and 2.

What its commands show people, help and tables among it: ``tests/plugins/inspect/test_screens.py``.
"""

import contextlib
import json
import re
import socket
import sys
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from tests.run_project import succeeds

AGENT = """
import agl

@agl.rollout
def agent(task: dict, prompt: agl.PromptTemplate) -> float:
    if task["x"] == "boom":
        raise ValueError("no such room")
    return float(task["x"])

@agl.rollout
def always_fails(task: dict) -> float:
    raise ValueError("no such room")

@agl.rollout
def needs_a_critic(task: dict, critic: agl.PromptTemplate, prompt: agl.PromptTemplate) -> float:
    return 1.0

class Watch(agl.Hook):
    def on_rollout_end(self, rollout):
        with open("seen.txt", "a") as file:
            print(rollout.attempt.status, file=file)
"""

CONFIG = """
agent: cli_agent:agent
train: tasks.jsonl
algorithm: baseline
strategy: shm
hooks: ["cli_agent:Watch"]
run_dir: out
resources:
  prompt: {type: prompt_template, template: "{x}"}
  llm: {type: llm, endpoint: "http://127.0.0.1/v1", model: m, api_key: sk-hush}
"""


Agl = Callable[..., Any]


@pytest.fixture
def project(own_modules):
    (own_modules / "cli_agent.py").write_text(AGENT)
    (own_modules / "tasks.jsonl").write_text('{"x": 1}\n{"x": "boom"}\n{"x": 0.5}\n')
    (own_modules / "agl.yaml").write_text(CONFIG)
    return own_modules


def test_version(agl):
    import agl as package

    assert agl("--version") == (0, f"agl {package.__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu"], "agl: unknown command 'rnu'. Did you mean 'run'?\n"),
        (["run"], "agl: Missing argument 'FILE': agl run agl.yaml, or agl run --resume\n"),
        (["config"], "agl: Missing argument 'FILE': agl config agl.yaml, or --schema\n"),
        (["store", "--mirror"], "agl: no such option '--mirror'.\n"),
        (
            ["dev"],
            "agl: Missing argument 'FILE'. Usage: agl dev [OPTIONS] FILE [FILE|KEY=VALUE]...\n",
        ),
        (["plugins", "--jsn"], "agl: no such option '--jsn'. Did you mean '--json'?"),
        (["plugins", "show", "baselin"], "agl: nothing installed is named 'baselin'. Did you "),
        (["plugins", "show", "algorithms/x"], "agl: unknown kind 'algorithms'; one of algorithm, "),
    ],
)
def test_wrong_request_is_one_sentence_and_exit_code_2(agl, arguments, message, here):
    result = agl(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(message)
    assert result.err.count("\n") == 1


def test_plugins_are_listed_as_json(agl):
    rows = json.loads(agl("plugins", "--json").out)
    row = next(row for row in rows if row["name"] == "baseline")
    assert row["state"] == "installed"
    about = {"kind", "name", "distribution", "version", "target"}
    assert set(row) == {*about, "state", "cause"}


def test_broken_plugin_is_listed_with_its_cause(agl, install):
    install("agl-x", {"agl_x_mod.py": "1 / 0"}, {"agl.algorithms": {"x": "agl_x_mod:X"}})
    checked = agl("plugins", "--check", "--json")
    assert (checked.code, agl("plugins", "--check").code, agl("plugins").code) == (1, 1, 0)
    rows = {row["name"]: row for row in json.loads(checked.out)}
    cause = "does not load: ZeroDivisionError: division by zero"
    assert (rows["x"]["state"], rows["x"]["cause"]) == ("broken", cause)
    assert rows["baseline"]["state"] == "ok"
    said = f"agl: algorithm 'x' (plugin 'agl-x') {cause}\n"
    assert agl("plugins", "show", "x") == (2, "", said)


def test_component_without_a_docstring_shows_none(agl, install):
    code = "import agl\nclass X(agl.DummyTracer): pass\n"
    install("agl-x", {"agl_x_tracer.py": code}, {"agl.tracers": {"x": "agl_x_tracer:X"}})
    shown = succeeds(agl, "plugins", "show", "x")
    assert "keeps none" not in shown.out


def test_options_of_a_component_are_listed_as_json(agl):
    options = json.loads(agl("plugins", "show", "algorithm/baseline", "--json").out)["options"]
    by_name = {option["name"]: option for option in options}
    assert by_name["n_epochs"]["default"] == 1
    assert by_name["n_epochs"]["doc"] == "How often each task runs."


def test_name_in_two_groups_asks_for_the_kind(agl, install):
    install("agl-x", {}, {"agl.tracers": {"twin": "x:X"}, "agl.stores": {"twin": "x:X"}})
    shown = agl("plugins", "show", "twin")
    assert shown == (2, "", "agl: 'twin' is the name of several: say store/twin or tracer/twin\n")


def test_verb_of_a_plugin_is_named_in_help_and_imported_when_called(agl, install):
    source = """
        import click

        @click.command()
        def hello():
            print("hello")
    """
    install("agl-x", {"agl_x_mod.py": source}, {"agl.commands": {"hello": "agl_x_mod:hello"}})
    # Third parties have no line in our catalogue: what their distribution says of itself.
    assert "Of other packages:\n  hello         agl-x" in agl("--help").out
    assert "agl_x_mod" not in sys.modules
    assert agl("hello") == (0, "hello\n", "")


def test_verb_of_a_plugin_that_is_no_command_is_refused(agl, install):
    install("agl-x", {"agl_x_mod.py": "hello = 5"}, {"agl.commands": {"hello": "agl_x_mod:hello"}})
    result = agl("hello")
    assert result.code == 2
    assert "expected a click.Command, got int" in result.err


def test_run_trains_and_leaves_a_store_and_its_configuration(agl, project):
    result = succeeds(agl, "run", "agl.yaml")
    # In the words of agl-inspect, or where it is not installed in plain ones.
    said = result.out
    for words in (
        "^rollouts +2 succeeded, 1 failed$|finished: 2 succeeded, 1 failed",
        r"reward +0\.75.* 2 succeeded rollouts|mean reward 0\.75$",
        r"^failed:? +1 x agent: ValueError at cli_agent\.py:\d+.*no such room$",
    ):
        assert re.search(words, said, re.M), words
    assert said.splitlines()[-1] == "store        out/store.db"
    seen = (project / "seen.txt").read_text().split()
    assert sorted(seen) == ["failed", "succeeded", "succeeded"]
    assert (project / "out").stat().st_mode & 0o077 == 0 or sys.platform == "win32"
    written = yaml.safe_load((project / "out" / "config.yaml").read_text())
    assert written["resources"]["llm"]["api_key"] == "***"


def test_dev_needs_no_algorithm_and_overrides_hold(agl, project):
    result = succeeds(agl, "dev", "agl.yaml", "algorithm=not-installed-here", "run_dir=elsewhere")
    assert "2 succeeded, 1 failed" in result.out
    assert (project / "elsewhere" / "store.db").is_file()
    assert not (project / "out").exists()


def test_run_of_which_no_rollout_succeeds_has_failed(agl, project):
    result = agl("run", "agl.yaml", "agent=cli_agent:always_fails")
    assert result.code == 1
    said = r"agl: no rollout succeeded; most often: 3 x agent: ValueError at cli_agent\.py:\d+, "
    assert re.fullmatch(f"{said}as in: no such room", result.err.splitlines()[-1])
    assert "3 failed" in result.out


def test_training_that_trained_nothing_has_failed(agl, project, install):
    source = """
        import json

        import agl

        class Idle(agl.Baseline):
            async def run(self, train_dataset=None, val_dataset=None):
                await super().run(train_dataset, val_dataset)
                said = {"calls_trained": 0, "calls_excluded": {"zero_advantage": 3}}
                (self.get_run_folder() / "summary.json").write_text(json.dumps(said))
    """
    install("agl-x", {"agl_x_mod.py": source}, {"agl.algorithms": {"idle": "agl_x_mod:Idle"}})
    result = agl("run", "agl.yaml", "algorithm={type: idle}")
    assert result.code == 1
    said = "agl: nothing was trained: model calls excluded: 3 zero_advantage"
    assert result.err.splitlines()[-1] == said


def test_algorithm_that_raises_ends_the_run_with_exit_code_1(agl, project, install):
    source = """
        import agl

        class Fails(agl.Algorithm):
            async def run(self, train_dataset=None, val_dataset=None):
                raise ValueError("diverged")
    """
    install("agl-x", {"agl_x_mod.py": source}, {"agl.algorithms": {"fails": "agl_x_mod:Fails"}})
    result = agl("run", "agl.yaml", "algorithm=fails")
    assert result.code == 1
    assert "diverged" in result.err.splitlines()[-1]
    assert "Traceback" not in result.err
    again = agl("run", "agl.yaml", "algorithm=fails", "--debug")
    assert again.code == 1
    assert "Traceback" in again.err


def test_an_error_that_nobody_expected_says_where_it_was_raised(agl, project, install):
    source = """
        import agl

        class Fails(agl.SharedMemoryExecutionStrategy):
            def prepare(self):
                raise KeyError("boom")
    """
    install("agl-x", {"agl_x_mod.py": source}, {"agl.strategies": {"fails": "agl_x_mod:Fails"}})
    result = agl("run", "agl.yaml", "strategy=fails")
    said = r"agl: KeyError: 'boom', at .*agl_x_mod\.py:6 \(--debug shows the traceback\)"
    assert (result.code, bool(re.fullmatch(said, result.err.splitlines()[-1]))) == (1, True)
    taken = agl("run", "agl.yaml", "run_dir=agl.yaml")
    said = "agl: 'agl.yaml': File exists (--debug shows the traceback)"
    assert (taken.code, taken.err.splitlines()[-1]) == (1, said)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.promps=1", "agl.yaml: algorithm.promps: unknown key."),
        ("algorithm=broken", "(plugin 'agl-x') does not load: ZeroDivisionError: "),
    ],
)
def test_wrong_configuration_starts_and_writes_nothing(agl, project, install, override, message):
    install("agl-x", {"agl_x_mod.py": "1 / 0"}, {"agl.algorithms": {"broken": "agl_x_mod:X"}})
    before = sorted(project.rglob("*.y*ml"))
    result = agl("run", "agl.yaml", override)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1
    assert sorted(project.rglob("*.y*ml")) == before
    assert not (project / "out").exists()


def test_port_in_use_is_refused_before_anything_is_written(agl, project):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = agl("run", "agl.yaml", f"strategy={{type: cs, server_port: {port}}}")
    assert result.code == 2
    assert str(port) in result.err
    assert "strategy.server_port" in result.err
    assert result.err.count("\n") == 1
    assert not (project / "out").exists()


def test_a_dry_run_says_more_with_v(agl, project):
    quiet, loud = agl("dev", "agl.yaml"), agl("dev", "-v", "agl.yaml")
    assert (quiet.code, loud.code) == (0, 0)
    assert "baseline: Finished 3 rollouts" in quiet.err
    for more in ("Enqueued in train mode", "#1 agentlightning.annotation (OK)"):
        assert (more in loud.err, more in quiet.err) == (True, False)


@pytest.mark.parametrize("verb", ["config", "run", "dev"])
def test_resource_that_nobody_gives_is_refused_before_anything_is_written(agl, project, verb):
    result = agl(verb, "agl.yaml", "agent=cli_agent:needs_a_critic")
    assert (result.code, result.out) == (2, "")
    assert "agl.yaml: agent: agent 'needs_a_critic': no resource for parameter" in result.err
    assert "in the file (resources: {critic: ...})" in result.err
    assert not (project / "out").exists()


def test_config_refuses_options_that_a_constructor_refuses(agl, project):
    result = agl("config", "agl.yaml", "algorithm.n_epochs=-1")
    assert (result.code, result.out) == (2, "")
    assert "n_epochs must be at least 0" in result.err


def test_several_runs_of_one_machine_need_no_port(agl, project):
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", 4747)):
        succeeds(agl, "run", "agl.yaml", "strategy=cs")


def test_config_is_printed_with_defaults_and_without_secrets(agl, project):
    result = succeeds(agl, "config", "agl.yaml", "algorithm.n_epochs=3")
    resolved = yaml.safe_load(result.out)
    assert resolved["algorithm"]["n_epochs"] == 3
    assert resolved["tracer"]["type"] == "otel"
    assert resolved["resources"]["llm"]["api_key"] == "***"
    assert json.loads(agl("config", "agl.yaml", "--json").out)["agent"] == "cli_agent:agent"
    assert not (project / "out").exists()
