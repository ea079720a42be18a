"""Components are found by metadata alone, and what is wrong with one is said."""

import json
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import pytest

import agl
from agl.cli.plugins import diagnose
from agl.errors import (
    AglError,
    BrokenComponentError,
    ConfigError,
    DuplicateComponentError,
    MissingPluginError,
    UnknownComponentError,
    install_line,
)
from agl.plugins import registry
from agl_runs.description import name_of

ALGORITHM = """
    import agl

    class Learn(agl.Algorithm):
        def run(self, train_dataset=None, val_dataset=None):
            pass
"""


def states(**options: Any) -> dict[tuple[str, str], list[tuple[str, str]]]:
    rows: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for row in diagnose(**options):
        rows.setdefault((row.kind, row.name), []).append((row.state, row.cause))
    return rows


def test_finding_components_imports_nothing(install):
    offers = {"agl.algorithms": {"x": "agl_x_mod:X"}}
    install("agl-x", {"agl_x_mod.py": "raise RuntimeError"}, offers)
    found = [c for c in registry.components("agl.algorithms") if c.name == "x"]
    assert [(c.kind, c.distribution, c.version, c.target) for c in found] == [
        ("algorithm", "agl-x", "1.0", "agl_x_mod:X")
    ]
    assert "agl_x_mod" not in sys.modules


def test_a_run_is_named_as_its_algorithm_is_published(install):
    install("agl-x", {"agl_x_mod.py": ALGORITHM}, {"agl.algorithms": {"hill": "agl_x_mod:Learn"}})
    algorithm = registry.load("agl.algorithms", "hill")()
    assert name_of(algorithm) == "hill"
    algorithm.name = "own"
    assert name_of(algorithm) == "own"
    assert name_of(agl.Baseline()) == "baseline"


def test_every_component_of_the_core_loads():
    own = [c for c in registry.components() if c.distribution == "agl-core"]
    assert {"otel", "memory", "shm", "plugins"} <= {c.name for c in own}
    for component in own:
        registry.load_component(component)


def test_unknown_name_is_refused_with_the_nearest_and_what_is_installed(install):
    install("agl-x", {}, {"agl.algorithms": {"verl": "nowhere:X"}})
    with pytest.raises(UnknownComponentError) as caught:
        registry.load("agl.algorithms", "verll")
    message = str(caught.value)
    assert message.startswith("unknown algorithm 'verll'; installed: ")
    assert message.endswith("Did you mean 'verl'? See: agl plugins")


def test_unknown_group_is_refused():
    with pytest.raises(ConfigError, match=r"agl\.algorithm'.*Did you mean 'agl\.algorithms'"):
        registry.components("agl.algorithm")


def test_name_that_two_distributions_offer_names_both_and_breaks_no_other(install):
    same, other = {"same": "agl_x_mod:Learn"}, {"other": "agl_x_mod:Learn"}
    install("agl-x", {"agl_x_mod.py": ALGORITHM}, {"agl.algorithms": same})
    install("agl-y", {}, {"agl.algorithms": same | other})
    with pytest.raises(DuplicateComponentError, match="'agl-x' and 'agl-y'"):
        registry.load("agl.algorithms", "same")
    assert registry.load("agl.algorithms", "other")
    assert [state for state, _ in states()["algorithm", "same"]] == ["duplicate", "duplicate"]


FAST = {"requires": ['no-such-engine>=2; extra == "fast"'], "extras": ["fast"]}
BACKEND = {"requires": ["an-engine; extra == 'backend'"], "extras": ["backend"]}
NEEDS = "algorithm 'x' (plugin 'agl-x') needs 'no_such_engine', which is not installed. Run: "


@pytest.mark.parametrize(
    ("needed", "about", "said"),
    [
        ("no_such_engine.deep", BACKEND, f"{NEEDS}pip install 'agl-x[backend]'"),
        ("no_such_engine", FAST, f"{NEEDS}pip install 'agl-x[fast]'"),
        # It is installed, so that "pip install agl-x" would change nothing.
        ("no_such_thing", FAST, "nor required by the plugin"),
        ("no_such_engine", {"requires": ["no-such-engine>=2"]}, f"{NEEDS}pip install agl-x"),
    ],
    ids=["backend", "extra", "of none", "required"],
)
def test_missing_module_says_what_brings_it(install, needed, about, said):
    offers = {"agl.algorithms": {"x": "agl_x_mod:X"}}
    install("agl-x", {"agl_x_mod.py": f"import {needed}"}, offers, **about)
    with pytest.raises(BrokenComponentError) as caught:
        registry.load("agl.algorithms", "x")
    assert said == str(caught.value) if said.startswith(NEEDS) else said in str(caught.value)


@pytest.mark.parametrize(
    ("group", "advice"),
    [
        ("agl.algorithms", "Uninstall one of them, or name the class itself, as 'x:X'"),
        ("agl.commands", "Uninstall one of them"),
        ("agl.plugins", "Uninstall one of them, or leave both out: AGL_DISABLE_PLUGINS=same"),
    ],
)
def test_advice_for_a_name_that_two_offer_can_be_followed(install, group, advice):
    for name in ("agl-x", "agl-y"):
        install(name, {}, {group: {"same": "x:X"}})
    causes = [row.cause for row in diagnose() if row.name == "same"]
    assert [cause.endswith(f". {advice}") for cause in causes] == [True, True], causes


STORE = "import agl\nclass X(agl.LightningStore)"
ABSTRACT = """
from abc import ABC, abstractmethod
class Base(ABC):
    @abstractmethod
    def tell(self): ...
    @abstractmethod
    def ask(self): ...
class X(Base)"""


@pytest.mark.parametrize(
    ("group", "source", "state", "cause"),
    [
        ("agl.algorithms", "class X: pass", "broken", "expected an Algorithm, got the class X"),
        ("agl.stores", f"{STORE}: pass", "broken", "has neither call() nor delete_documents, del"),
        ("agl.stores", f"{STORE}:\n    async def call(self, *_): pass", "ok", ""),
        ("agl.algorithms", "def X(): pass", "ok", ""),
        ("agl.credits", f"{ABSTRACT}: pass", "broken", "class X lacks ask(), tell()"),
        ("agl.algorithm", "X = 5", "unknown group", "'agl.algorithm'. Did you mean 'agl.algorit"),
    ],
)
def test_check_says_what_is_wrong_with_a_component_before_anybody_names_it(
    install, group, source, state, cause
):
    install("agl-x", {"agl_x_mod.py": source}, {group: {"x": "agl_x_mod:X"}})
    [row] = [row for row in diagnose(check=True) if row.name == "x"]
    assert (row.state, cause in row.cause) == (state, True), row.cause


PRINTS = """
    import agl

    print("hello from the plugin")

    class X(agl.Hook):
        def __init__(self):
            print("made")

    class Learn(agl.Algorithm):
        def run(self, train_dataset=None, val_dataset=None): ...

    @agl.rollout
    def agent(task): ...
"""


@pytest.mark.parametrize(
    ("group", "target", "arguments"),
    [
        ("agl.plugins", "agl_x_mod:X", ["plugins", "--check", "--json"]),
        ("agl.algorithms", "agl_x_mod:Learn", ["plugins", "show", "x", "--json"]),
        ("agl.algorithms", "agl_x_mod:Learn", ["config", "FILE", "--json"]),
    ],
)
def test_what_is_printed_while_it_is_loaded_is_no_data(
    install, capfd, tmp_path, group, target, arguments
):
    from agl.cli import main

    install("agl-x", {"agl_x_mod.py": PRINTS}, {group: {"x": target}})
    file = tmp_path / "agl.yaml"
    file.write_text("{agent: agl_x_mod:agent, algorithm: x, train: tasks.jsonl}")
    (tmp_path / "tasks.jsonl").write_text("{}")
    with pytest.raises(SystemExit, match="0"):
        main([str(file) if argument == "FILE" else argument for argument in arguments])
    out, err = capfd.readouterr()
    assert json.loads(out)
    assert "hello from the plugin" in err


def test_what_agents_print_while_another_thread_loads_a_plugin_stays_on_stdout():
    real = sys.stdout
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(registry.stdout_to_stderr).result()
        pool.submit(loading.__enter__).result()
        assert sys.stdout is real
        pool.submit(loading.__exit__, None, None, None).result()


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("raise SystemExit(3)", "does not load: SystemExit: 3"),
        ("", "does not load: AttributeError: module 'agl_x_mod' has no attribute 'X'"),
        ("import agl_x_mod.inner", "does not load: there is no module 'agl_x_mod.inner'."),
    ],
)
def test_broken_plugin_shows_its_cause_and_breaks_nobody_else(install, source, cause):
    install("agl-x", {"agl_x_mod.py": source}, {"agl.algorithms": {"x": "agl_x_mod:X"}})
    assert states()["algorithm", "x"] == [("installed", "")]
    checked = states(check=True)
    [(state, found)] = checked["algorithm", "x"]
    assert state == "broken"
    assert found.startswith(cause)
    assert checked["algorithm", "baseline"] == [("ok", "")]


def test_disabled_hook_plugin_is_shown_as_such(install, monkeypatch):
    install("agl-x", {}, {"agl.plugins": {"watcher": "nowhere"}})
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", "other, watcher")
    [(state, cause)] = states()["plugin", "watcher"]
    assert state == "disabled"
    assert "AGL_DISABLE_PLUGINS" in cause


@pytest.mark.parametrize(
    ("holder", "name", "group", "entry"),
    [
        ("agl", "VERL", "agl.algorithms", "verl"),
        ("agl", "TraceToMessages", "agl.adapters", "messages"),
        ("agl.adapter", "TraceToMessages", "agl.adapters", "messages"),
    ],
)
def test_public_name_of_an_installed_plugin_is_its_class(install, holder, name, group, entry):
    dist = "agl-verl" if name == "VERL" else "agl-adapters"
    install(dist, {"agl_x_mod.py": ALGORITHM}, {group: {entry: "agl_x_mod:Learn"}})
    known = vars(agl).pop(name, None)
    try:
        assert getattr(import_module(holder), name).__name__ == "Learn"
    finally:
        vars(agl).pop(name, None)
        if known is not None:
            setattr(agl, name, known)


def test_agl_adapter_has_no_names_of_other_groups():
    with pytest.raises(AttributeError, match="no attribute 'APO'"):
        _ = import_module("agl.adapter").APO


@pytest.mark.parametrize(
    ("kind", "name", "package"),
    [
        ("algorithm", "gepa", "agl-apo[gepa]"),
        ("tracer", "weave", "agl-tracers[weave]"),
        ("sandbox", "docker", "agl-sandbox"),
        ("command", "plugins check", "agl-core[testing]"),
    ],
)
def test_name_of_ours_that_is_not_installed_says_what_to_install(monkeypatch, kind, name, package):
    monkeypatch.setattr(registry, "_scan", lambda path: ())
    with pytest.raises(MissingPluginError) as caught:
        registry.find(registry.GROUPS[kind], name)
    assert str(caught.value) == (
        f"{kind} {name!r} lives in {package}, which is not installed. Run: {install_line(package)}"
    )


def test_command_line_says_what_to_install_for_a_name(monkeypatch, capsys):
    from agl.cli import main

    of_core = [c for c in registry.components() if c.distribution == "agl-core"]
    monkeypatch.setattr(registry, "_scan", lambda path: of_core)
    how = install_line("agl-torch")
    with pytest.raises(SystemExit, match="2"):
        main(["plugins", "check", "grpo"])
    assert "'plugins check' lives in agl-core[testing], which is" in capsys.readouterr().err
    for name in ("grpo", "algorithm/grpo"):
        with pytest.raises(SystemExit, match="2"):
            main(["plugins", "show", name])
        assert capsys.readouterr().err == (
            f"agl: algorithm 'grpo' lives in agl-torch, which is not installed. Run: {how}\n"
        )


def test_nearest_name_may_be_one_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(registry, "_scan", lambda path: ())
    with pytest.raises(UnknownComponentError, match="Did you mean 'distillation'"):
        registry.find("agl.algorithms", "distilation")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("agl.LLMPrxy", "AttributeError: module 'agl' has no attribute 'LLMPrxy'. Did you mean"),
        ("agl.MongoLightningStore", "It is of Agent Lightning 0.3: use agl.SqliteLightningStore("),
        ("agl.reward", "It is of Agent Lightning 0.3: call agl.emit_reward(value), or"),
        ("agl.litagent.LitAgent", "It is of Agent Lightning 0.3: use agl.LitAgent"),
        ("from agl import MongoLightningStore", "ImportError: cannot import name 'MongoLight"),
        ("agl.Trainer(max_tasks=1)", "'max_tasks'. It is of Agent Lightning 0.3: it is max_roll"),
        ("agl.Trainer(algoritm=1)", "unknown argument 'algoritm'. Did you mean 'algorithm'?"),
        ("agl.Trainer(resources={})", "'resources'. Did you mean 'initial_resources'?"),
        ("agl.Trainer(dev=True)", "and call trainer.dev(agent, tasks) instead of fit"),
        ("agl.setup_logging(apply_to=[])", "every logger of agl and its plugins is under"),
        ("agl.Trainer().fit(None, train_data=[1])", "'train_data'. It is of Agent Lightning 0.3:"),
    ],
)
def test_wrong_name_and_one_of_0_3_says_what_is_right(code, message):
    with pytest.raises((AglError, AttributeError, ImportError, TypeError)) as caught:
        exec(f"import agl\n{code}")
    assert message in "".join(traceback.format_exception_only(caught.value))


def test_unknown_argument_is_a_type_error_and_no_name_an_attribute_error():
    with pytest.raises(TypeError):
        agl.Trainer(max_tasks=1)
    assert not hasattr(agl, "reward")


@pytest.mark.parametrize(
    ("needed", "said"),
    [
        ("agl-no-such>=2", f"there is none. Run: {install_line('agl-x[x]')}"),
        ("click<1", "there is 8."),
    ],
)
def test_component_whose_extra_is_not_there_as_it_must_be_needs_it(install, needed, said):
    about = {"requires": [f"{needed}; extra == 'x'"], "extras": ["x"]}
    offers = {"agl.algorithms": {"x": "agl_x_mod:Learn"}}
    install("agl-x", {"agl_x_mod.py": ALGORITHM}, offers, **about)
    [(state, cause)] = states(check=True)["algorithm", "x"]
    assert (state, cause.startswith(f"needs {needed}; {said}")) == ("needs extra", True), cause
