"""Hooks get what they name, in order, and what they raise stays out of the run."""

import asyncio
import logging
import pickle
import threading
from types import ModuleType
from typing import Any

import pytest

import agl
from agl.cli.plugins import try_component
from agl.errors import BrokenComponentError, ConfigError, PluginError
from agl.plugins.hooks import HookCaller, HookManager
from agl.plugins.registry import components

TRACE = {"agent": "agent", "runner": "runner", "tracer": "tracer", "rollout": "rollout"}
START = {"agent": "agent", "runner": "runner", "rollout": "rollout"}
END = {**START, "spans": ["span"]}


class Recorder(agl.Hook):
    """Names all arguments, as 0.3's hooks do."""

    def __init__(self):
        self.calls = []

    def note(self, name, given):
        self.calls.append((name, {key: one for key, one in given.items() if key != "self"}))

    async def on_rollout_start(self, *, agent, runner, rollout):
        self.note("on_rollout_start", locals())

    async def on_trace_start(self, *, agent, runner, tracer, rollout):
        self.note("on_trace_start", locals())

    async def on_trace_end(self, *, agent, runner, tracer, rollout):
        self.note("on_trace_end", locals())

    async def on_rollout_end(self, *, agent, runner, rollout, spans):
        self.note("on_rollout_end", locals())


async def check_told(name, given):
    hook = Recorder()
    await HookCaller([hook]).call(name, **given)
    assert hook.calls == [(name, given)]


async def test_on_rollout_start_gets_agent_runner_and_rollout():
    await check_told("on_rollout_start", START)


async def test_on_trace_start_gets_the_tracer_too():
    await check_told("on_trace_start", TRACE)


async def test_on_trace_end_gets_the_tracer_too():
    await check_told("on_trace_end", TRACE)


async def test_on_rollout_end_gets_the_spans():
    await check_told("on_rollout_end", END)


async def test_partial_plain_and_open_signatures_work():
    seen: list[Any] = []

    class Partial(agl.Hook):
        async def on_trace_end(self, *, rollout: Any) -> None:
            seen.append(rollout)

    class Plain:
        def on_trace_end(self, tracer: Any, factor: int = 2) -> None:
            seen.append(tracer * factor)

    class Open:
        def on_trace_end(self, **everything: Any) -> None:
            seen.append(sorted(everything))

    await HookCaller([Partial(), Plain(), Open()]).call("on_trace_end", **TRACE)
    assert seen == ["rollout", "tracertracer", ["agent", "rollout", "runner", "tracer"]]


async def test_one_function_may_be_several_hooks():
    seen: list[Any] = []

    class Both:
        def on_rollout_start(self, **everything: Any) -> None:
            seen.append(sorted(everything))

        on_rollout_end = on_rollout_start

    caller = HookCaller([Both()])
    await caller.call("on_rollout_start", **START)
    await caller.call("on_rollout_end", **END)
    assert seen == [["agent", "rollout", "runner"], ["agent", "rollout", "runner", "spans"]]


async def test_hook_of_0_3_may_call_the_method_of_its_base():
    class Calls(agl.Hook):
        async def on_rollout_start(self, *, agent: Any, runner: Any, rollout: Any) -> None:
            await super().on_rollout_start(agent=agent, runner=runner, rollout=rollout)

    caller = HookCaller([Calls()])
    await caller.call("on_rollout_start", **START)
    assert not caller.failures


def test_methods_that_a_hook_does_not_override_are_no_implementations():
    class OnlySteps(agl.Hook):
        def on_step_end(self) -> None: ...

    caller = HookCaller([OnlySteps()], manager=HookManager())
    assert [name for name in caller.manager.arguments if caller.listens(name)] == ["on_step_end"]


@pytest.mark.parametrize("error", [ValueError("no"), asyncio.CancelledError("no")])
async def test_failing_hook_is_logged_counted_and_hurts_nobody(error, caplog, monkeypatch):
    monkeypatch.delenv("AGL_STRICT_PLUGINS", raising=False)

    class Fails:
        async def on_rollout_start(self) -> None:
            raise error

    after = Recorder()
    caller = HookCaller([Fails(), after])
    with caplog.at_level(logging.ERROR, logger="agl.plugins.hooks"):
        for _ in range(11):
            await caller.call("on_rollout_start", **START)
    assert len(after.calls) == 11
    [(name, count)] = caller.failures.items()
    assert name.endswith("Fails")
    assert count == 11
    record, later = caplog.records
    assert later.getMessage().endswith("failures so far: 10")
    assert f"on_rollout_start raised {type(error).__name__}: no" in record.getMessage()
    assert name in record.getMessage()


async def test_strict_plugins_raise_at_once(monkeypatch):
    hook = agl.Hook()
    hook.on_rollout_start = lambda: 1 / 0
    monkeypatch.setenv("AGL_STRICT_PLUGINS", "1")
    with pytest.raises(PluginError, match="on_rollout_start raised ZeroDivisionError: div"):
        await HookCaller([hook]).call("on_rollout_start", **START)


class Misspelt(agl.Hook):
    async def on_trace_ended(self) -> None: ...


class AsksTooMuch(agl.Hook):
    async def on_rollout_end(self, *, span: Any) -> None: ...


class Generator:
    async def on_rollout_end(self) -> Any:
        yield


class Wrapper:
    @agl.hookimpl(wrapper=True)
    def on_rollout_end(self) -> Any:
        yield


class PlainMisspelt:
    def on_rollout_end(self) -> None: ...

    def on_steps_end(self) -> None: ...


def module(**functions: Any) -> ModuleType:
    vars(made := ModuleType("watching")).update(functions)
    return made


class MarkedMisspelt:
    def on_rollout_end(self) -> None: ...

    @agl.hookimpl
    def on_rollout_begin(self) -> None: ...


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (Misspelt(), "no hook 'on_trace_ended'; .* Did you mean 'on_trace_end'?"),
        (PlainMisspelt(), "no hook 'on_steps_end'; .* Did you mean 'on_step_end'?"),
        (module(store_route=print), "'store_route'; .* mean 'store_routes'?"),
        (AsksTooMuch(), "on_rollout_end asks for 'span'; .* Did you mean 'spans'?"),
        (Wrapper(), "on_rollout_end is a generator"),
        (MarkedMisspelt(), "no hook 'on_rollout_begin'"),
        (Generator(), "on_rollout_end is a generator"),
        (object(), "has none of the hooks"),
        (Recorder, "is a class. Give an instance: Recorder()"),
    ],
)
def test_wrong_hook_is_refused_and_nothing_of_it_is_registered(hook, message):
    manager = HookManager()
    with pytest.raises(ConfigError, match=message):
        manager.register(hook)
    assert manager.get_plugins() == set()
    assert manager.hook.on_rollout_end.get_hookimpls() == []


def test_helpers_and_agents_are_not_taken_for_misspelt_hooks():
    class Helpers(agl.LitAgent[Any]):
        routes = columns = add_routes = on_start = on_end = _on_rollout_ended = print
        on_steps_end = 3

        def on_rollout_end(self) -> None: ...

    assert HookCaller([Helpers()]).listens("on_rollout_end")


def test_same_hook_given_twice_is_refused():
    hook = Recorder()
    with pytest.raises(ConfigError, match="given twice"):
        HookCaller([hook, hook])


async def test_hooks_run_as_given_but_for_tryfirst_and_trylast():
    order: list[str] = []

    def hook(name: str, **options: bool) -> object:
        class Named:
            @agl.hookimpl(**options)
            def on_rollout_start(self) -> None:
                order.append(name)

        return Named()

    hooks = [hook("last", trylast=True), hook("a"), hook("b"), hook("first", tryfirst=True)]
    await HookCaller(hooks).call("on_rollout_start", **START)
    assert order == ["first", "a", "b", "last"]


def plugin_source(name: str) -> str:
    return f"""
        import agl

        SEEN = []

        @agl.hookimpl
        def on_rollout_start(rollout):
            SEEN.append(("{name}", rollout))
    """


async def test_installed_plugins_run_in_name_order_before_given_objects(install):
    install("agl-b", {"agl_b_mod.py": plugin_source("b")}, {"agl.plugins": {"b": "agl_b_mod"}})
    install("agl-a", {"agl_a_mod.py": plugin_source("a")}, {"agl.plugins": {"a": "agl_a_mod"}})
    caller = HookCaller([Recorder()])
    called = reversed(caller.manager.hook.on_rollout_start.get_hookimpls())
    assert [i.plugin_name for i in called] == ["a", "b", f"{__name__}.Recorder"]
    await caller.call("on_rollout_start", **START)
    import agl_a_mod

    assert agl_a_mod.SEEN == [("a", "rollout")]


def test_runners_of_one_process_share_the_plugins_of_their_run(install, caplog, monkeypatch):
    monkeypatch.delenv("AGL_STRICT_PLUGINS", raising=False)
    source = """
        MADE = []

        class Watch:
            def __init__(self): MADE.append(self)
            def on_rollout_start(self): raise RuntimeError("watching")
    """
    install("agl-a", {"agl_c_mod.py": source}, {"agl.plugins": {"c": "agl_c_mod:Watch"}})
    all_run = threading.Barrier(3)

    @agl.rollout
    def agent(task: int) -> float:
        all_run.wait(60)
        return 1.0

    result = agl.Trainer(algorithm="baseline", strategy="shm", n_runners=3).fit(agent, range(3))
    assert result.rollouts == {"succeeded": 3}
    import agl_c_mod

    assert len(agl_c_mod.MADE) == 1
    assert caplog.text.count("raised RuntimeError: watching") == 1


NO_HOOK = "import agl\n@agl.hookimpl\ndef on_rollout_begin(): ...\ndef on_rollout_end(): ..."


@pytest.mark.parametrize(
    ("source", "error"), [("1 / 0", BrokenComponentError), (NO_HOOK, ConfigError)]
)
def test_broken_plugin_is_left_out_whole_and_said_or_raises_when_strict(
    install, source, error, caplog, monkeypatch
):
    install("agl-a", {"agl_a_mod.py": source}, {"agl.plugins": {"a": "agl_a_mod"}})
    install("agl-b", {"agl_b_mod.py": plugin_source("b")}, {"agl.plugins": {"b": "agl_b_mod"}})
    monkeypatch.delenv("AGL_STRICT_PLUGINS", raising=False)
    caller = HookCaller()
    assert caller.failures == {"a": 1}
    assert {"a", "b"} & {name for name, _ in caller.manager.list_name_plugin()} == {"b"}
    assert "'a' is left out" in caplog.text
    monkeypatch.setenv("AGL_STRICT_PLUGINS", "1")
    with pytest.raises(error):
        HookCaller()
    [component] = [c for c in components("agl.plugins") if c.name == "a"]
    with pytest.raises(error):
        try_component(component)


def test_disabled_plugin_is_not_imported(install, monkeypatch):
    install("agl-a", {"agl_a_mod.py": "1 / 0"}, {"agl.plugins": {"a": "agl_a_mod"}})
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", "a")
    assert HookCaller().failures == {}


async def test_caller_travels_to_another_process_with_its_hooks():
    caller = pickle.loads(pickle.dumps(HookCaller([Recorder()])))
    await caller.call("on_rollout_start", **START)
    assert caller.failures == {}
    assert len(caller.manager.hook.on_rollout_start.get_hookimpls()) == 1


async def test_plugin_manager_fixture_starts_empty_and_takes_a_plugin(plugin_manager):
    assert plugin_manager.get_plugins() == set()
    hook = Recorder()
    plugin_manager.register(hook, "mine")
    await HookCaller(manager=plugin_manager).call("on_rollout_start", **START)
    assert len(hook.calls) == 1
