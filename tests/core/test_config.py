"""Components are built from any form in which they may be given, or refused by name."""

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refused

import agl
from agl.errors import (
    AglError,
    BrokenComponentError,
    ConfigError,
    DatasetError,
    UnknownComponentError,
)
from agl.plugins.build import build_component, plan_component
from agl_runs.config.file import CheckedConfig, check_config, load_config
from agl_runs.config.overrides import apply_overrides, naming, parse_yaml


class Learn(agl.Algorithm):
    """Learn.

    Args:
        n: How many.
    """

    def __init__(self, n: int = 1, rate: float = 0.1) -> None:
        if n < 0:
            raise ValueError("n is negative")
        if n == 1000:
            raise ConfigError("too many")
        self.n, self.rate = n, rate

    def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None: ...


class Nest(Learn):
    def __init__(self, inner: Any) -> None:
        build(inner, where="Nest: inner")


ready = Learn(7)


def make_learn() -> Learn:
    return Learn(8)


def build(spec: Any, **options: Any) -> Any:
    options = {"group": "agl.algorithms", "expected_type": agl.Algorithm, **options}
    return build_component(spec, **options)


@pytest.fixture(autouse=True)
def _importable():
    # The tests are not on sys.path; a user's module is.
    sys.modules["my_learning"] = sys.modules[__name__]
    yield
    del sys.modules["my_learning"]


@pytest.mark.parametrize(
    ("spec", "n"),
    [
        (ready, 7),
        (Learn, 1),
        (make_learn, 8),
        (lambda: Learn(9), 9),
        ("my_learning:Learn", 1),
        ("my_learning.Learn", 1),
        ("my_learning:ready", 7),
        ("my_learning:make_learn", 8),
        ({"type": "my_learning:Learn", "n": "4"}, 4),
        ({"type": Learn, "n": 5}, 5),
        ({"type": "my_learning:ready"}, 7),
    ],
)
def test_component_is_built_from_any_form(spec, n):
    built = build(spec)
    assert isinstance(built, Learn)
    assert built.n == n
    if spec is ready:
        assert built is ready


def test_registered_name_is_built():
    assert isinstance(build("baseline"), agl.Baseline)
    assert build({"type": "baseline", "n_epochs": 3}).n_epochs == 3


def test_none_takes_the_default():
    assert isinstance(build(None, default="baseline"), agl.Baseline)
    assert build(None, default=ready) is ready


def test_dict_without_type_holds_options_of_the_default():
    assert build({"n": 3}, default=Learn).n == 3
    built = build({"n": 3}, default={"type": Learn, "rate": 0.5, "n": 1})
    assert (built.n, built.rate) == (3, 0.5)
    with pytest.raises(ConfigError, match=r"^here: 'type' is missing; installed: .*baseline"):
        build({"n": 3}, where="here")
    with pytest.raises(ConfigError, match=r"^'type' is missing; write 'module:attribute'"):
        build({"n": 3}, group=None)


def test_optional_defaults_go_only_where_they_are_taken_and_not_given():
    assert build(Learn, optional_defaults={"n": 5, "unknown": 1}).n == 5
    assert build({"type": Learn, "n": 2}, optional_defaults={"n": 5}).n == 2
    assert build(ready, optional_defaults={"n": 5}).n == 7


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("baselin", UnknownComponentError, "f: unknown algorithm 'baselin'; installed: "),
        ("no_module:X", ConfigError, "f: there is no module 'no_module'."),
        ("my_learning:Lern", ConfigError, "f: 'my_learning' has no 'Lern', as 'my_learning:Lern' "),
        ("my_learning:", ConfigError, "f: 'my_learning:' is no path; write 'module:attribute'"),
        ("my_learning:Path", ConfigError, "f: Path: expected an Algorithm, got the class Path"),
        ({"type": Learn, "m": 1}, ConfigError, "f.m: unknown key. Known: n, rate"),
        ({"type": Learn, "n": "x"}, ConfigError, "f.n: expected int, got 'x'"),
        ({"type": Learn, "n": -1}, ConfigError, "f: Learn cannot be built: ValueError: n is neg"),
        ({"type": Learn, "n": 1000}, ConfigError, "f: too many"),
        ({"type": Nest, "inner": {"type": Learn, "m": 1}}, ConfigError, "f.inner.m: unknown key."),
        ({"type": Nest, "inner": "x"}, UnknownComponentError, "f.inner: unknown algorithm 'x'"),
        ({"type": ready, "n": 1}, ConfigError, "f: Learn is made already; it takes no options"),
        (lambda: 5, ConfigError, "expected an Algorithm, got a int"),
        (5, ConfigError, "f: int: expected an Algorithm, got a int"),
        ({"type": "baseline", "n_epoch": 1}, ConfigError, "f.n_epoch: unknown key. Did you mean "),
    ],
)
def test_wrong_component_is_refused_in_one_line(spec, error, message):
    with refused(error, message):
        build(spec, where="f")


def test_module_that_fails_to_import_is_named_with_the_cause(tmp_path, monkeypatch):
    (tmp_path / "fails_inside.py").write_text("import no_such_engine")
    monkeypatch.syspath_prepend(tmp_path)
    said = "ModuleNotFoundError: No module named 'no_such_engine'"
    with refused(ConfigError, f"f: importing 'fails_inside' failed: {said}"):
        build("fails_inside:X", where="f")


def test_component_that_misses_a_module_when_built_says_what_to_install(install):
    source = """
        import agl

        class X(agl.Algorithm):
            def __init__(self):
                import no_such_engine
            def run(self, train_dataset=None, val_dataset=None): ...
    """
    about = {"extras": ["backend"], "requires": ["no-such-engine; extra == 'backend'"]}
    offers = {"agl.algorithms": {"x": "agl_x_mod:X"}}
    install("agl-x", {"agl_x_mod.py": source}, offers, **about)
    with pytest.raises(BrokenComponentError, match=r"f: algorithm 'x' .*'agl-x\[backend\]'"):
        build("x", where="f")


def test_planning_builds_nothing():
    of = {"group": "agl.algorithms", "expected_type": agl.Algorithm}
    assert plan_component({"type": "my_learning:Learn", "n": -1}, **of).options == {"n": -1}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1e-6", 1e-6), ("4", 4), ("-2.5E3", -2500.0), ("[a, 1]", ["a", 1]), ("", None)),
        ("a: &a {x: 1}\nb: {<<: *a, n: [*a]}", {"a": {"x": 1}, "b": {"x": 1, "n": [{"x": 1}]}}),
    ],
)
def test_yaml_values(text, value):
    assert parse_yaml(text, "x") == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [", "f.yaml, line 2: not YAML: "),
        ("a: 1\nb: 2\na: 3", "f.yaml, line 3: not YAML: key 'a' stands twice"),
        ("a: \x07", "f.yaml: not YAML: "),
        ("a: {b: ${HOME}}", "f.yaml, line 1: not YAML: expected ',' or '}', but got '{'. Within "),
        ("[" * 2000, "f.yaml: not YAML that can be read: it is nested too deep"),
        ("a: !!python/object:os.system 1", "f.yaml, line 1: not YAML: "),
    ],
)
def test_text_that_is_no_yaml_is_refused_with_its_line(text, message):
    with refused(ConfigError, message):
        parse_yaml(text, "f.yaml")


def test_overrides_lead_into_blocks_names_and_lists(capsys):
    values: dict[str, Any] = {"algorithm": "apo", "hooks": ["a:b", "c:d"], "store": {"path": "x"}}
    values["strategy"] = {"type": "shm", "main_thread": "runner"}
    more = ["tracer.deep.er=[1, 2]", "val=", "strategy.type=cs"]
    apply_overrides(values, ["algorithm.beam_width=4", "hooks.1=e:f", "store.path=y", *more])
    assert values == {
        "algorithm": {"type": "apo", "beam_width": 4},
        "hooks": ["a:b", "e:f"],
        "store": {"path": "y"},
        "tracer": {"deep": {"er": [1, 2]}},
        "val": None,
        "strategy": {"type": "cs"},
    }
    said = "strategy.type=cs: left out, as options of 'shm': main_thread\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("runners", "'runners': expected key=value"),
        ("=4", "expected key=value"),
        ("a..b=4", "expected key=value"),
        ("runners.x=1", "'runners' is 2 and has no 'x'"),
        ("hooks.5=x", "'5' is no position in a list of 1"),
        ("runners=[", "runners=[, line 1: not YAML"),
        ("a.b.c=1 then a.b=2", "'a.b=2' replaces what 'a.b.c=1' has set before; give it first"),
    ],
)
def test_wrong_override_is_refused(override, message):
    with pytest.raises(ConfigError) as caught:
        apply_overrides({"runners": 2, "hooks": ["a"]}, override.split(" then "))
    assert message in str(caught.value)


AGENT = """
import agl

@agl.rollout
def agent(task, prompt_template):
    return 1.0

class Agent(agl.LitAgent):
    def rollout(self, task, resources, rollout):
        return 0.0

def plain(task):
    return 0.0

class Watch(agl.Hook):
    def __init__(self, name: str = "w"):
        self.name = name
    async def on_rollout_end(self, *, spans): ...

class Misspelt(agl.Hook):
    async def on_rollout_ended(self): ...

watch = Watch("made")
def grade(task, private, result):
    return 0.5
def environment(level: int = 1):
    from agl_runs.environments import Environment
    return Environment(agent, [{"x": level}] * level)
"""

GOOD = """
agent: cfg_agent:agent
train: tasks.jsonl
algorithm: baseline
resources:
  prompt: {resource_type: prompt_template, template: "{x}"}
"""


@pytest.fixture
def project(own_modules):
    (own_modules / "cfg_agent.py").write_text(AGENT)
    (own_modules / "tasks.jsonl").write_text('{"x": 1}\n')
    (own_modules / "agl.yaml").write_text(GOOD)
    return own_modules


def check(project: Path, *overrides: str) -> CheckedConfig:
    return check_config(load_config(project / "agl.yaml", overrides), run_dir=project / "run")


def test_whole_file_is_loaded_and_nothing_is_left_behind(project):
    hooks = "hooks=[cfg_agent:watch, {type: cfg_agent:Watch, name: x}]"
    llm = "resources.llm={type: llm, endpoint: http://h/v1, model: m}"
    strategy = ("runners=3", "strategy=shm", "strategy.main_thread=algorithm")
    checked = check(project, *strategy, hooks, llm, "val=tasks.jsonl")
    assert isinstance(checked.agent, agl.LitAgent)
    assert checked.train == checked.val == [{"x": 1}]
    assert [hook.name for hook in checked.hooks] == ["made", "x"]
    assert checked.resources == {
        "prompt": agl.PromptTemplate(template="{x}"),
        "llm": agl.LLM(endpoint="http://h/v1", model="m"),
    }
    assert checked.components["strategy"].build().n_runners == 3
    assert checked.components["store"].options == {"path": str(project / "run" / "store.db")}
    assert isinstance(checked.components["algorithm"].build(), agl.Baseline)
    assert not (project / "run").exists()
    assert check(project, "agent=cfg_agent:Agent").agent.__class__.__name__ == "Agent"


def test_environment_brings_agent_and_tasks_and_a_reward_grades(project):
    whole = ("agent=", "train=", "environment={type: cfg_agent:environment, level: 2}")
    checked = check(project, *whole, "val=tasks.jsonl", "reward=cfg_agent:grade")
    assert (checked.train, checked.val) == ([{"x": 2}] * 2, [{"x": 1}])
    assert checked.agent.grade({}, None, "") == 0.5
    # The agent itself is as before: another file may grade it otherwise.
    assert check(project, *whole, "reward=cfg_agent:grade").agent is not checked.agent
    sys.modules["cfg_agent"].agent.grade = checked.agent.grade
    with pytest.raises(ConfigError, match="reward: the agent has a grader of its own"):
        check(project, *whole, "reward=exact_match")
    with pytest.raises(ConfigError, match=r"environment: .* an Environment whose train is empty"):
        check(project, *whole, "environment.level=0")


def test_concurrency_of_the_file_goes_before_the_variable(project, monkeypatch):
    monkeypatch.setenv("AGL_CONCURRENCY", "many")
    assert check(project, "concurrency=2").file.config.concurrency == 2
    assert check(project, "runner.concurrency=2").file.config.concurrency is None
    with pytest.raises(ConfigError, match="AGL_CONCURRENCY='many'"):
        check(project)


@pytest.mark.parametrize(
    ("override", "error", "message"),
    [
        ("concurrency=0", ConfigError, "agl.yaml: runner: LitAgentRunner: concurrency must be at "),
        ("agnet=x", ConfigError, "agl.yaml: agnet: unknown key. Did you mean 'agent'?"),
        ("runners=0", ConfigError, "agl.yaml: runners must be at least 1; got 0"),
        ("hooks=cfg_agent:watch", ConfigError, "agl.yaml: hooks: "),
        ("agent=cfg_agnet:agent", ConfigError, "there is no module 'cfg_agnet'. Did you mean "),
        ("agent=cfg_agent:agnet", ConfigError, "has no 'agnet', as 'cfg_agent:agnet' says. Did "),
        ("agent=cfg_agent:plain", ConfigError, "expected an agent (a function with @agl.rollout, "),
        ("agent=cfg_agent:AGENT", ConfigError, "agl.yaml: agent: "),
        ("reward=cfg_agent:plain", ConfigError, "takes (task); expected (task, private, result)"),
        ("agent=", ConfigError, "agl.yaml: expected one of 'agent' and 'environment', which has "),
        ("environment=cfg_agent:environment", ConfigError, "an agent; there is both"),
        ("reward=exact_mach", UnknownComponentError, "agl.yaml: reward: unknown reward 'exact_m"),
        ("train=missing.jsonl", DatasetError, "missing.jsonl: no such dataset file"),
        ("algorithm=", ConfigError, "agl.yaml: algorithm: missing; installed: "),
        ("algorithm=baselin", UnknownComponentError, "agl.yaml: algorithm: unknown algorithm "),
        ("tracer=otl", UnknownComponentError, "agl.yaml: tracer: unknown tracer 'otl'; "),
        ("strategy.port=1", ConfigError, "agl.yaml: strategy.port: unknown key. "),
        ("resources.p={type: prompt}", ConfigError, "agl.yaml: resources.p.type: unknown resource"),
        ("resources.p={template: x}", ConfigError, "agl.yaml: resources.p.type: missing; one of "),
        ("resources.prompt.templat=x", ConfigError, "agl.yaml: resources.prompt.templat: unknown "),
        ("hooks=[cfg_agent:Misspelt]", ConfigError, "hooks.0: hook plugin 'cfg_agent.Misspelt': "),
        ("hooks=[{type: cfg_agent:watch, n: 1}]", ConfigError, "agl.yaml: hooks.0: 'cfg_agent:wa"),
        ("run_dir=${AGL_TEST_NO_SUCH}", ConfigError, "agl.yaml: run_dir: the environment variable"),
        ("run_dir=${HOME:-3}", ConfigError, "run_dir: ${HOME:-3}: only a name may stand in "),
        ("datset=x", ConfigError, "agl.yaml: datset: unknown key. Here it is 'train'"),
        ("n_epochs=3", ConfigError, "n_epochs: unknown key. It is an option of the algorithm: alg"),
        ("isolation.type=docker", ConfigError, "It is an option of the runner: runner.isolation"),
        ("level=3", ConfigError, "level: unknown key. Known: agent, "),
        ("store={type: sqlite, durability: x}", ConfigError, "agl.yaml: store.durability: "),
    ],
)
def test_each_wrong_key_is_refused_in_one_line(project, override, error, message):
    with refused(error, message):
        check(project, override)


def test_an_unknown_key_is_named_before_a_wrong_value(project):
    with pytest.raises(ConfigError, match="levl: unknown key"):
        check(project, "runner=3", "levl=3")


def test_two_numbers_of_runners_are_refused(project):
    with pytest.raises(ConfigError, match="runners=2, and the strategy given has n_runners=3"):
        check(project, "runners=2", "strategy={type: cs, n_runners: 3}")


def test_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no\.yaml: no such file"):
        load_config(tmp_path / "no.yaml")
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(ConfigError, match="expected keys and values"):
        load_config(tmp_path / "list.yaml")


def test_resolved_configuration_has_defaults_and_no_secrets(project, monkeypatch):
    monkeypatch.setenv("AGL_TEST_SECRET", "hush")
    checked = check(
        project,
        "resources.llm={type: llm, endpoint: http://h/v1, model: m, api_key: '${AGL_TEST_SECRET}'}",
        "strategy={type: cs, token: '${AGL_TEST_SECRET}'}",
    )
    assert checked.resources["llm"].api_key == "hush"
    resolved = checked.resolved()
    assert resolved["algorithm"]["n_epochs"] == 1
    assert resolved["strategy"]["token"] == "${AGL_TEST_SECRET}"
    assert "hush" not in str(resolved)


def lay(project: Path, **files: str) -> list[str]:
    for name, text in files.items():
        (project / f"{name}.yaml").write_text(text)
    return [str(project / f"{name}.yaml") for name in files]


def test_later_files_win_and_blocks_are_merged(project):
    layers = lay(
        project,
        big="algorithm: {max_queue_length: 8}\nstrategy: {n_runners: 3}\nval: tasks.jsonl\n",
        huge="runners: 3\nhooks: [cfg_agent:watch]\n",
    )
    given = ["algorithm={type: baseline, n_epochs: 2}", "strategy=shm", "runners=2", "hooks=[a, b]"]
    (project / "agl.yaml").write_text("agent: cfg_agent:agent\nresources: {a: {type: llm}}\n")
    (project / "base.yaml").write_text("\n".join(one.replace("=", ": ", 1) for one in given))
    words = [str(project / "base.yaml"), layers[0], "algorithm.n_epochs=5", layers[1]]
    loaded = load_config(project / "agl.yaml", words)
    assert loaded.values == {
        "agent": "cfg_agent:agent",
        "resources": {"a": {"type": "llm"}},
        "algorithm": {"type": "baseline", "n_epochs": 5, "max_queue_length": 8},
        "strategy": {"type": "shm", "n_runners": 3},
        "runners": 3,
        "hooks": ["cfg_agent:watch"],
        "val": "tasks.jsonl",
    }
    assert loaded.path == project / "agl.yaml"
    # An option of another type is none of it.
    other = load_config(words[0], lay(project, other="algorithm: {type: mine}\nrunners: \n"))
    assert (other.values["algorithm"], other.values["runners"]) == ({"type": "mine"}, None)


@pytest.mark.parametrize(
    ("base", "layer", "message"),
    [
        ("", "algorithm: {n_epoch: 3}", "big.yaml: algorithm.n_epoch: unknown key. Did you mean"),
        ("n_epochs: many", "algorithm: {max_queue_length: 3}", "agl.yaml: algorithm.n_epochs: exp"),
        ("n_epochs: 3", "algorithm: {n_epochs: many}", "big.yaml: algorithm.n_epochs: expected"),
        ("", "runners: many", "big.yaml: runners: expected int | None, got 'many'"),
        ("", "val: none.jsonl", "big.yaml: val: "),
        ("", "hooks: [nothing]", "big.yaml: hooks.0: unknown hook 'nothing'"),
        ("", "- 3", "big.yaml: expected keys and values, got [3]"),
        ("", "a: {", "big.yaml, line 2: not YAML"),
    ],
)
def test_an_error_names_the_file_that_has_the_key(project, base, layer, message):
    (project / "agl.yaml").write_text(
        f"agent: cfg_agent:agent\nalgorithm: {{type: baseline, {base}}}\n"
        "resources: {prompt: {type: prompt_template, template: a}}\n"
    )
    with pytest.raises(AglError) as caught:
        check(project, *lay(project, big=f"{layer}\n"))
    assert str(caught.value).startswith(message)


def test_an_error_that_names_its_file_is_the_one_that_was_raised():
    layers = [(Path("agl.yaml"), {}), (Path("big.yaml"), {"runners": 1})]
    error = ConfigError("agl.yaml: runners: expected less")
    with pytest.raises(ConfigError) as caught, naming(layers):
        raise error
    assert caught.value is error
    assert str(error) == "big.yaml: runners: expected less"
