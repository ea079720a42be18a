"""What ``agl`` offers: the one list, read by type checkers and by ``lazy_loader``."""

import agentlightning.store.threading
import agl_adapters
import agl_apo
import agl_gateway
import agl_learning.advantages.group_advantages
import agl_records.credit
import agl_records.ledger.ledger
import agl_records.training_data
import agl_records.types
import agl_runs.baseline
import agl_runs.mixed_calls
import agl_runs.records
import agl_server.client
import agl_server.processes
import agl_server.processes.events
import agl_server.server
import agl_sqlite
import agl_torch
import agl_tracers.agentops
import agl_tracers.weave
import agl_verl

from .agent.base import LitAgent as LitAgent, Runner as Runner
from .agent.function import (
    FunctionalLitAgent as FunctionalLitAgent,
    llm_rollout as llm_rollout,
    prompt_rollout as prompt_rollout,
    rollout as rollout,
)
from .algorithm.adapter import (
    Adapter as Adapter,
    OtelTraceAdapter as OtelTraceAdapter,
    TraceAdapter as TraceAdapter,
    TraceToTripletBase as TraceToTripletBase,
    Triplet as Triplet,
)
from .algorithm.base import (
    Algorithm as Algorithm,
    FastAlgorithm as FastAlgorithm,
    FunctionalAlgorithm as FunctionalAlgorithm,
    algo as algo,
)
from .algorithm.gateway import Gateway as Gateway, ModelConfig as ModelConfig
from .algorithm.run_result import FailureCause as FailureCause, RunResult as RunResult
from .emitter import (
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
from .env import (
    LightningEnvVar as LightningEnvVar,
    resolve_bool_env_var as resolve_bool_env_var,
    resolve_int_env_var as resolve_int_env_var,
    resolve_str_env_var as resolve_str_env_var,
)
from .errors import AglError as AglError
from .execution.base import (
    ExecutionEvent as ExecutionEvent,
    ExecutionStrategy as ExecutionStrategy,
    ThreadingEvent as ThreadingEvent,
)
from .execution.shared_memory import SharedMemoryExecutionStrategy as SharedMemoryExecutionStrategy
from .plugins.build import build_component as build_component
from .plugins.hooks import Hook as Hook
from .plugins.hookspecs import hookimpl as hookimpl, hookspec as hookspec
from .runner import LitAgentRunner as LitAgentRunner
from .store.base import (
    UNSET as UNSET,
    LightningStore as LightningStore,
    LightningStoreCapabilities as LightningStoreCapabilities,
    LightningStoreStatistics as LightningStoreStatistics,
)
from .store.memory import InMemoryLightningStore as InMemoryLightningStore
from .tracer.base import (
    DummyTracer as DummyTracer,
    SpanRecordingContext as SpanRecordingContext,
    Tracer as Tracer,
    clear_active_tracer as clear_active_tracer,
    get_active_tracer as get_active_tracer,
    set_active_tracer as set_active_tracer,
)
from .tracer.otel import OtelTracer as OtelTracer
from .trainer import Trainer as Trainer
from .types import (
    LLM as LLM,
    Attempt as Attempt,
    AttemptedRollout as AttemptedRollout,
    AttemptStatus as AttemptStatus,
    Attributes as Attributes,
    AttributeValue as AttributeValue,
    Dataset as Dataset,
    Document as Document,
    EnqueueRolloutRequest as EnqueueRolloutRequest,
    Event as Event,
    Failure as Failure,
    Link as Link,
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
    Span as Span,
    SpanContext as SpanContext,
    SpanCoreFields as SpanCoreFields,
    SpanLike as SpanLike,
    StatusCode as StatusCode,
    TaskInput as TaskInput,
    TraceState as TraceState,
    TraceStatus as TraceStatus,
    Worker as Worker,
    WorkerStatus as WorkerStatus,
)
from .utils.life_cycle import ParallelWorkerBase as ParallelWorkerBase
from .utils.logs import setup_logging as setup_logging, setup_module_logging as setup_module_logging

__version__: str
__all__: list[str]

# Of plugins and libraries; where one is not installed, its names are unknown to type checkers.
LlmProxyTraceToTriplet = agl_adapters.LlmProxyTraceToTriplet
TraceToMessages = agl_adapters.TraceToMessages
TraceToRows = agl_adapters.TraceToRows
TracerTraceToTriplet = agl_adapters.TracerTraceToTriplet
APO = agl_apo.APO
GEPA = agl_apo.GEPA
LLMProxy = agl_gateway.LLMProxy
group_advantages = agl_learning.advantages.group_advantages.group_advantages
sibling_advantages = agl_learning.advantages.group_advantages.sibling_advantages
CreditRule = agl_records.credit.CreditRule
Ledger = agl_records.ledger.ledger.Ledger
load_ledger = agl_records.ledger.ledger.load_ledger
load_parts = agl_records.ledger.ledger.load_parts
save_ledger = agl_records.ledger.ledger.save_ledger
MixingCheck = agl_runs.mixed_calls.MixingCheck
Choice = agl_records.training_data.Choice
ModelCall = agl_records.training_data.ModelCall
RowBreak = agl_records.training_data.RowBreak
TrainedModel = agl_records.training_data.TrainedModel
TrainingRow = agl_records.training_data.TrainingRow
EXCLUSION_REASONS = agl_records.types.EXCLUSION_REASONS
Advantage = agl_records.types.Advantage
Credit = agl_records.types.Credit
Exclusion = agl_records.types.Exclusion
ExclusionReason = agl_records.types.ExclusionReason
LedgerPart = agl_records.types.LedgerPart
StepCredit = agl_records.types.StepCredit
Trained = agl_records.types.Trained
Baseline = agl_runs.baseline.Baseline
Run = agl_runs.records.Run
RunGeneration = agl_runs.records.RunGeneration
RunStart = agl_runs.records.RunStart
ClientServerExecutionStrategy = agl_server.processes.ClientServerExecutionStrategy
MultiprocessingEvent = agl_server.processes.events.MultiprocessingEvent
LightningStoreClient = agl_server.client.LightningStoreClient
LightningStoreServer = agl_server.server.LightningStoreServer
LightningStoreThreaded = agentlightning.store.threading.LightningStoreThreaded
SqliteLightningStore = agl_sqlite.SqliteLightningStore
GRPO = agl_torch.GRPO
AgentOpsTracer = agl_tracers.agentops.AgentOpsTracer
WeaveTracer = agl_tracers.weave.WeaveTracer
VERL = agl_verl.VERL
