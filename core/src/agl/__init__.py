"""agl: train any agent with any algorithm, through one store.

A Trainer runs an Algorithm, which puts Rollouts in a Store; Runners claim them, run your Agent
under a Tracer and write Spans back; an Adapter turns spans into what the algorithm learns from.

Every name is imported when it is first used, so that ``import agl`` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME: dict[str, str] = {
    name: module
    for module, names in {
        "agl.adapter": "Adapter CreditRule OtelTraceAdapter TraceAdapter TraceToTripletBase",
        "agl.advantages": "group_advantages sibling_advantages",
        "agl.agent": ("FunctionalLitAgent LitAgent llm_rollout prompt_rollout rollout"),
        "agl.algorithm": "Algorithm FastAlgorithm FunctionalAlgorithm algo",
        "agl.baseline": "Baseline",
        "agl.client": "LightningStoreClient",
        "agl.config": "build_component",
        "agl.emitter": (
            "emit_annotation emit_choice emit_exception emit_message emit_object emit_reward "
            "find_final_reward find_reward_spans get_message_value get_object_value "
            "get_reward_value get_rewards_from_span is_reward_span operation"
        ),
        "agl.env": ("LightningEnvVar resolve_bool_env_var resolve_int_env_var resolve_str_env_var"),
        "agl.errors": "AglError",
        "agl.execution.base": "ExecutionStrategy",
        "agl.execution.client_server": "ClientServerExecutionStrategy",
        "agl.execution.events": "ExecutionEvent MultiprocessingEvent ThreadingEvent",
        "agl.execution.shared_memory": "SharedMemoryExecutionStrategy",
        "agl.gateway": "Gateway ModelConfig",
        "agl.hooks": "Hook",
        "agl.hookspecs": "hookimpl hookspec",
        "agl.ledger": "load_ledger load_parts save_ledger",
        "agl.logs": "setup_logging setup_module_logging",
        "agl.runner": "LitAgentRunner Runner",
        "agl.server": "LightningStoreServer",
        "agl.store.base": (
            "UNSET LightningStore LightningStoreCapabilities LightningStoreStatistics"
        ),
        "agl.store.memory": "InMemoryLightningStore",
        "agl.store.sqlite": "SqliteLightningStore",
        "agl.store.threaded": "LightningStoreThreaded",
        "agl.tracer.base": (
            "DummyTracer SpanRecordingContext Tracer clear_active_tracer get_active_tracer "
            "set_active_tracer"
        ),
        "agl.tracer.otel": "OtelTracer",
        "agl.trainer": "Trainer",
        "agl.types": (
            "LLM Advantage Attempt AttemptStatus AttemptedRollout AttributeValue Attributes "
            "Choice Credit Dataset EXCLUSION_REASONS EnqueueRolloutRequest Event Exclusion "
            "ExclusionReason Failure FilterField Ledger LedgerPart Link ModelCall NamedResources "
            "OtelResource PaginatedResult PromptTemplate ProxyLLM Resource ResourceUnion "
            "ResourcesUpdate RewardDimension Rollout RolloutConfig RolloutMode RolloutRawResult "
            "RolloutStatus RowBreak SortOptions Span SpanContext SpanCoreFields SpanLike "
            "StatusCode StepCredit TaskInput TraceState TraceStatus Trained TrainedModel "
            "TrainingRow Triplet Worker WorkerStatus"
        ),
        "agl.workers": "ParallelWorkerBase",
    }.items()
    for name in names.split()
}

_PLUGIN: dict[str, tuple[str, str, str]] = {
    "AgentOpsTracer": ("agl.tracers", "agentops", "agl-tracers"),
    "APO": ("agl.algorithms", "apo", "agl-apo"),
    "GRPO": ("agl.algorithms", "grpo", "agl-torch"),
    "LLMProxy": ("agl.gateways", "proxy", "agl-gateway"),
    "LlmProxyTraceToTriplet": ("agl.adapters", "proxy-triplet", "agl-adapters"),
    "TraceToMessages": ("agl.adapters", "messages", "agl-adapters"),
    "TraceToRows": ("agl.adapters", "rows", "agl-adapters"),
    "TracerTraceToTriplet": ("agl.adapters", "triplet", "agl-adapters"),
    "VERL": ("agl.algorithms", "verl", "agl-verl"),
    "WeaveTracer": ("agl.tracers", "weave", "agl-tracers"),
}
"""Public names that live in a plugin: entry point group, entry point, distribution."""

_SUBMODULES = (
    "adapter",
    "advantages",
    "agent",
    "algorithm",
    "cli",
    "client",
    "config",
    "emitter",
    "errors",
    "execution",
    "gateway",
    "ledger",
    "hooks",
    "hookspecs",
    "plugins",
    "runner",
    "semconv",
    "server",
    "store",
    "tracer",
    "trainer",
    "types",
    "utils",
)

__all__ = sorted([*_HOME, "__version__"])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name in _PLUGIN:
        from agl.plugins import load_public_name

        value = load_public_name(name, *_PLUGIN[name])
    elif name in _SUBMODULES:
        value = import_module(f"agl.{name}")
    else:
        raise AttributeError(f"module 'agl' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    # Without the names of plugins: ``help(agl)`` must work where one of them is not installed.
    return sorted([*globals(), *_HOME, *_SUBMODULES])


if TYPE_CHECKING:
    # pyright reads these; nothing is imported at run time.
    from agl.adapter import (
        Adapter as Adapter,
        CreditRule as CreditRule,
        OtelTraceAdapter as OtelTraceAdapter,
        TraceAdapter as TraceAdapter,
        TraceToTripletBase as TraceToTripletBase,
    )
    from agl.advantages import (
        group_advantages as group_advantages,
        sibling_advantages as sibling_advantages,
    )
    from agl.agent import (
        FunctionalLitAgent as FunctionalLitAgent,
        LitAgent as LitAgent,
        llm_rollout as llm_rollout,
        prompt_rollout as prompt_rollout,
        rollout as rollout,
    )
    from agl.algorithm import (
        Algorithm as Algorithm,
        FastAlgorithm as FastAlgorithm,
        FunctionalAlgorithm as FunctionalAlgorithm,
        algo as algo,
    )
    from agl.baseline import (
        Baseline as Baseline,
    )
    from agl.client import (
        LightningStoreClient as LightningStoreClient,
    )
    from agl.config import (
        build_component as build_component,
    )
    from agl.emitter import (
        emit_annotation as emit_annotation,
        emit_choice as emit_choice,
        emit_exception as emit_exception,
        emit_message as emit_message,
        emit_object as emit_object,
        emit_reward as emit_reward,
        find_final_reward as find_final_reward,
        find_reward_spans as find_reward_spans,
        get_message_value as get_message_value,
        get_object_value as get_object_value,
        get_reward_value as get_reward_value,
        get_rewards_from_span as get_rewards_from_span,
        is_reward_span as is_reward_span,
        operation as operation,
    )
    from agl.env import (
        LightningEnvVar as LightningEnvVar,
        resolve_bool_env_var as resolve_bool_env_var,
        resolve_int_env_var as resolve_int_env_var,
        resolve_str_env_var as resolve_str_env_var,
    )
    from agl.errors import (
        AglError as AglError,
    )
    from agl.execution.base import (
        ExecutionStrategy as ExecutionStrategy,
    )
    from agl.execution.client_server import (
        ClientServerExecutionStrategy as ClientServerExecutionStrategy,
    )
    from agl.execution.events import (
        ExecutionEvent as ExecutionEvent,
        MultiprocessingEvent as MultiprocessingEvent,
        ThreadingEvent as ThreadingEvent,
    )
    from agl.execution.shared_memory import (
        SharedMemoryExecutionStrategy as SharedMemoryExecutionStrategy,
    )
    from agl.gateway import (
        Gateway as Gateway,
        ModelConfig as ModelConfig,
    )
    from agl.hooks import (
        Hook as Hook,
    )
    from agl.hookspecs import (
        hookimpl as hookimpl,
        hookspec as hookspec,
    )
    from agl.ledger import (
        load_ledger as load_ledger,
        load_parts as load_parts,
        save_ledger as save_ledger,
    )
    from agl.logs import (
        setup_logging as setup_logging,
        setup_module_logging as setup_module_logging,
    )
    from agl.runner import (
        LitAgentRunner as LitAgentRunner,
        Runner as Runner,
    )
    from agl.server import (
        LightningStoreServer as LightningStoreServer,
    )
    from agl.store.base import (
        UNSET as UNSET,
        LightningStore as LightningStore,
        LightningStoreCapabilities as LightningStoreCapabilities,
        LightningStoreStatistics as LightningStoreStatistics,
    )
    from agl.store.memory import (
        InMemoryLightningStore as InMemoryLightningStore,
    )
    from agl.store.sqlite import (
        SqliteLightningStore as SqliteLightningStore,
    )
    from agl.store.threaded import (
        LightningStoreThreaded as LightningStoreThreaded,
    )
    from agl.tracer.base import (
        DummyTracer as DummyTracer,
        SpanRecordingContext as SpanRecordingContext,
        Tracer as Tracer,
        clear_active_tracer as clear_active_tracer,
        get_active_tracer as get_active_tracer,
        set_active_tracer as set_active_tracer,
    )
    from agl.tracer.otel import (
        OtelTracer as OtelTracer,
    )
    from agl.trainer import (
        Trainer as Trainer,
    )
    from agl.types import (
        EXCLUSION_REASONS as EXCLUSION_REASONS,
        LLM as LLM,
        Advantage as Advantage,
        Attempt as Attempt,
        AttemptedRollout as AttemptedRollout,
        AttemptStatus as AttemptStatus,
        Attributes as Attributes,
        AttributeValue as AttributeValue,
        Choice as Choice,
        Credit as Credit,
        Dataset as Dataset,
        EnqueueRolloutRequest as EnqueueRolloutRequest,
        Event as Event,
        Exclusion as Exclusion,
        ExclusionReason as ExclusionReason,
        Failure as Failure,
        FilterField as FilterField,
        Ledger as Ledger,
        LedgerPart as LedgerPart,
        Link as Link,
        ModelCall as ModelCall,
        NamedResources as NamedResources,
        OtelResource as OtelResource,
        PaginatedResult as PaginatedResult,
        PromptTemplate as PromptTemplate,
        ProxyLLM as ProxyLLM,
        Resource as Resource,
        ResourcesUpdate as ResourcesUpdate,
        ResourceUnion as ResourceUnion,
        RewardDimension as RewardDimension,
        Rollout as Rollout,
        RolloutConfig as RolloutConfig,
        RolloutMode as RolloutMode,
        RolloutRawResult as RolloutRawResult,
        RolloutStatus as RolloutStatus,
        RowBreak as RowBreak,
        SortOptions as SortOptions,
        Span as Span,
        SpanContext as SpanContext,
        SpanCoreFields as SpanCoreFields,
        SpanLike as SpanLike,
        StatusCode as StatusCode,
        StepCredit as StepCredit,
        TaskInput as TaskInput,
        TraceState as TraceState,
        TraceStatus as TraceStatus,
        Trained as Trained,
        TrainedModel as TrainedModel,
        TrainingRow as TrainingRow,
        Triplet as Triplet,
        Worker as Worker,
        WorkerStatus as WorkerStatus,
    )
    from agl.workers import (
        ParallelWorkerBase as ParallelWorkerBase,
    )
