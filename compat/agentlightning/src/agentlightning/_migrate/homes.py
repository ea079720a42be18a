"""Where agl has what ``agentlightning`` gives under a path and a name, and what to use instead."""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, signature
from typing import Any, NamedTuple

from agentlightning._refused import REFUSED

RENAMED = {
    "__version__": None,
    "LinkPydanticModel": ("agl.utils.otel", "LinkMatch"),
    "RewardPydanticModel": ("agl", "RewardDimension"),
    "configure_logger": ("agl", "setup_module_logging"),
    "lightning_cli": None,
}
"""Name -> where agl has it, and how it is called there; None where agl's has another meaning."""

VALUES = {
    "RewardMatchPolicy.FIRST_OCCURRENCE": '"first_occurrence"',
    "RewardMatchPolicy.FIRST_SIBLING": '"first_sibling"',
}
"""Members of enumerations that are plain texts in agl."""

_V01 = (
    "the task server of 0.1; write the algorithm as a class with run(), and give it to "
    "agl.Trainer(algorithm=...), or queue with store.enqueue_rollout (docs/howto/"
    "write-an-algorithm.md)"
)
_RECORDS = "a record of 0.1; agl.Rollout, agl.Attempt and spans have what it says"
_SPAN_NAMES = "use the constants and enumerations of agl.semconv"
_QUERIES = "use the parameters of the store's query methods"
_METRICS = "install agl-metrics; every server answers GET /metrics by itself"

INSTEAD = {
    "__version__": "agl.__version__ is that of agl",
    "AgentLightningClient": _V01,
    "AgentLightningServer": _V01,
    "DevTaskLoader": "call trainer.dev(agent, tasks)",
    "LegacyAgentRunner": "use agl.LitAgentRunner, or agl.Trainer(...).fit(agent, tasks)",
    "TrainerLegacy": "use agl.Trainer",
    "GenericResponse": _RECORDS,
    "RolloutLegacy": _RECORDS,
    "RolloutRawResultLegacy": "use agl.types.RolloutRawResult",
    "Task": _RECORDS,
    "TaskIfAny": _RECORDS,
    "SpanNames": _SPAN_NAMES,
    "SpanAttributeNames": _SPAN_NAMES,
    "LinkAttributes": _SPAN_NAMES,
    "RewardAttributes": _SPAN_NAMES,
    "reward": "call agl.emit_reward(value) in the function, or return the reward from the agent",
    "lightning_cli": "use agl run agl.yaml KEY=VALUE, or argparse",
    "TraceTree": "use agl.TracerTraceToTriplet().adapt(spans); agl spans lists what it was made of",
    "Transition": "use agl.Triplet, or rows: agl.TraceToRows",
    "RewardMatchPolicy": 'write "first_occurrence" or "first_sibling"',
    "OpenAIMessages": "rows of agl.TraceToMessages are plain dicts",
    "FilterField": _QUERIES,
    "FilterOptions": _QUERIES,
    "SortOptions": _QUERIES,
    "instrument_all": 'give a tracer to the trainer: agl.Trainer(tracer="agentops")',
    "uninstrument_all": "a tracer undoes by itself what it did",
    "MetricsBackend": _METRICS,
    "ConsoleMetricsBackend": _METRICS,
    "MultiMetricsBackend": _METRICS,
    "PrometheusMetricsBackend": _METRICS,
    "system_snapshot": "heartbeats of runners have it: Worker.heartbeat_stats",
    "generate_id": "use secrets.token_hex",
    "ExecutionStrategyRegistry": 'names are entry points of the group "agl.strategies"',
    "run_ppo": "use agl.VERL(config), or agl run agl.yaml",
}
"""Name -> what to use instead, where ``agentlightning`` has a translation and agl has nothing."""

OTHERWISE = "agl has no public name for it; do without, or go on with agentlightning's"

KEYWORDS = {
    ("Trainer", "n_workers"): "n_runners",
    ("Trainer", "max_tasks"): "max_rollouts",
    ("Trainer", "triplet_exporter"): "adapter",
}
"""A parameter that has another name in agl."""

_NO_EFFECT = {
    "Trainer": {"daemon": "no process outlives fit"},
    "Baseline": {
        "train_split": "train tasks run in mode train, validation tasks in mode val",
        "polling_interval": "it waits in the store",
        "span_verbosity": "the log has the names of the attributes",
    },
    "LitAgentRunner": {
        "poll_interval": "it waits in the store",
        "interval_jitter": "heartbeats come at equal intervals",
        "heartbeat_launch_mode": "heartbeats come from a thread",
    },
    "APO": {"_poml_trace": "each call to the optimizing models is a span of the run"},
    "LLMProxy": {"launch_mode": "it runs in a thread"},
    "LightningStoreServer": {"launch_mode": "it serves from a thread"},
    "InMemoryLightningStore": {"scan_debounce_seconds": "it looks every scan_interval_seconds"},
    "SharedMemoryExecutionStrategy": {
        "poll_interval": "nobody polls",
        "join_timeout": "threads have 15 seconds to end",
    },
    "AgentOpsTracer": dict.fromkeys(
        ("agentops_managed", "daemon"), "agentops.init is never called, and nothing is sent"
    ),
    "WeaveTracer": {"project_name": "weave.init is never called"},
}
REMOVED_KEYWORDS = {
    (name, keyword): why
    for name, keywords in _NO_EFFECT.items()
    for keyword, why in keywords.items()
}
"""A parameter without effect, which goes -> why."""

REFUSED_KEYWORDS = {
    ("Trainer", "dev"): "leave it out, and call trainer.dev(...) instead of fit(...)",
    ("InMemoryLightningStore", "tracker"): "give it to LightningStoreServer(tracker=...)",
    ("TracerTraceToTriplet", "_skip_empty_token_spans"): "leave it out",
    ("AgentOpsTracer", "instrument_managed"): "libraries=() instruments nothing",
    ("WeaveTracer", "instrument_managed"): "libraries=() instruments nothing",
    ("WeaveTracer", "weave_user_settings"): "set Weave's environment variables",
    ("LLMProxy", "litellm_config"): "give each model its options in model_list",
    ("LLMProxy", "middlewares"): "leave it out: it attributes and streams by itself",
    ("LLMProxy", "num_workers"): "leave it out, as one forwards thousands of calls per second; or "
    "keep agentlightning.LLMProxy, which takes it",
    ("LLMProxy", "launcher_args"): "give host and port",
    ("LightningStoreServer", "launcher_args"): "give host and port",
    ("LightningStoreServer", "n_workers"): "leave it out: one process owns the store and serves it",
}
"""A parameter that agl refuses -> what to do; for others its signature is asked."""

DIFFERENT = {
    "LightningStoreServer": "it asks for a token, on loopback too: give clients server.endpoint, "
    "which has it in it, or set AGL_SERVER_TOKEN for both",
    "LLMProxy": "by its bare address it asks for a key, as_resource().api_key; a trainer hands it "
    "out by itself",
    "build_component": "another signature: build_component(spec, group=, expected_type=, where=)",
}
"""A function or class that does otherwise where it is called -> how."""

_TWO_EVENTS = "give an object with this method as Trainer(hooks=[...]); an agent has none in agl"

METHODS = {
    "on_rollout_start": _TWO_EVENTS,
    "on_rollout_end": _TWO_EVENTS,
}
"""Methods of an agent that nobody calls."""
ORDER_OF_0_1 = (
    "agl calls it with (task, resources, rollout), and the id is rollout.rollout_id; 0.1 had "
    "(task, rollout_id, resources), which agentlightning.LitAgent still takes"
)

SERVER_OF_0_1 = (
    "a server of 0.1: agl's fit takes tasks. Write what the server does as an algorithm, or go on "
    "with agentlightning.Trainer"
)
TRACER = (
    "agl's default tracer is OpenTelemetry's, 0.3's was AgentOps (agl-tracers[agentops]); leave "
    "it out where all model calls go through the proxy"
)

SEARCHED = "emitter semconv types utils.otel store.base execution.base tracer.base"
"""Modules of agl where a name may be that is neither at its top nor where it was."""


class Home(NamedTuple):
    """Where a name is in agl."""

    module: str
    name: str


@cache
def public_names() -> frozenset[str]:
    """The names of ``import agl``, those of plugins included, without importing any."""
    import agl
    from agl.utils import catalogue

    return frozenset({*agl.__all__, *catalogue.public_names("components")})


@cache
def has_module(name: str) -> bool:
    """Whether there is a module of this name."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def is_module(path: str) -> bool:
    """Whether ``agentlightning`` has a module of this path; empty for the top."""
    return has_module(f"agentlightning.{path}".rstrip("."))


@cache
def home_of(path: str, name: str) -> Home | None:
    """Where agl has a name of a module below ``agentlightning``; "" is the path of the top.

    None where agl has nothing of this meaning; ``advice_for`` says what to use.
    """
    if name in REFUSED:
        return None
    if name in RENAMED:
        renamed = RENAMED[name]
        return renamed and Home(*renamed)
    if name in INSTEAD:
        return None
    if name in public_names():
        return Home("agl", name)
    for module in dict.fromkeys((path, *SEARCHED.split())):
        found = _module(f"agl.{module}".rstrip("."))
        if found is not None and _is_own(getattr(found, name, None)):
            return Home(found.__name__, name)
    return None


def advice_for(name: str) -> str:
    """What to use in place of a name that agl does not have."""
    refused = REFUSED.get(name)
    return f"agl refuses it: {refused}" if refused else INSTEAD.get(name, OTHERWISE)


@cache
def parameters_of(home: Home) -> frozenset[str] | None:
    """The names of what it takes; None where it takes any, or cannot be asked."""
    try:
        taken = signature(getattr(import_module(home.module), home.name)).parameters.values()
    except Exception:  # a plugin that is not installed, or what is no function
        return None
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in taken):
        return None
    return frozenset(parameter.name for parameter in taken)


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


def _is_own(value: Any) -> bool:
    """Whether it is there, and not handed on from ``agentlightning``."""
    home = getattr(value, "__module__", "agl")
    return value is not None and not str(home).startswith("agentlightning")
