"""The names of the top level, each imported when it is first used; ``lazy_loader`` reads it."""

import typing

from .adapter.base import (
    Adapter as Adapter,
    OtelTraceAdapter as OtelTraceAdapter,
    TraceAdapter as TraceAdapter,
)
from .adapter.messages import (
    TraceToMessages as TraceToMessages,
)
from .adapter.triplet import (
    LlmProxyTraceToTriplet as LlmProxyTraceToTriplet,
    TracerTraceToTriplet as TracerTraceToTriplet,
    TraceToTripletBase as TraceToTripletBase,
)
from .algorithm.apo.apo import (
    APO as APO,
)
from .algorithm.base import (
    Algorithm as Algorithm,
)
from .algorithm.decorator import (
    algo as algo,
)
from .algorithm.fast import (
    Baseline as Baseline,
    FastAlgorithm as FastAlgorithm,
)
from .algorithm.verl.interface import (
    VERL as VERL,
)
from .client import (
    AgentLightningClient as AgentLightningClient,
    DevTaskLoader as DevTaskLoader,
)
from .config import (
    lightning_cli as lightning_cli,
)
from .emitter.annotation import (
    emit_annotation as emit_annotation,
    operation as operation,
)
from .emitter.exception import (
    emit_exception as emit_exception,
)
from .emitter.message import (
    emit_message as emit_message,
    get_message_value as get_message_value,
)
from .emitter.object import (
    emit_object as emit_object,
    get_object_value as get_object_value,
)
from .emitter.reward import (
    emit_reward as emit_reward,
    find_final_reward as find_final_reward,
    find_reward_spans as find_reward_spans,
    get_reward_value as get_reward_value,
    get_rewards_from_span as get_rewards_from_span,
    is_reward_span as is_reward_span,
)
from .env_var import (
    LightningEnvVar as LightningEnvVar,
    resolve_bool_env_var as resolve_bool_env_var,
    resolve_int_env_var as resolve_int_env_var,
    resolve_str_env_var as resolve_str_env_var,
)
from .execution.base import (
    ExecutionStrategy as ExecutionStrategy,
)
from .execution.client_server import (
    ClientServerExecutionStrategy as ClientServerExecutionStrategy,
)
from .execution.events import (
    ExecutionEvent as ExecutionEvent,
    MultiprocessingEvent as MultiprocessingEvent,
    ThreadingEvent as ThreadingEvent,
)
from .execution.shared_memory import (
    SharedMemoryExecutionStrategy as SharedMemoryExecutionStrategy,
)
from .litagent.decorator import (
    llm_rollout as llm_rollout,
    prompt_rollout as prompt_rollout,
    rollout as rollout,
)
from .litagent.litagent import (
    LitAgent as LitAgent,
)
from .llm_proxy import (
    LLMProxy as LLMProxy,
)
from .logging import (
    configure_logger as configure_logger,
    setup_logging as setup_logging,
    setup_module_logging as setup_module_logging,
)
from .runner.agent import (
    LitAgentRunner as LitAgentRunner,
)
from .runner.base import (
    Runner as Runner,
)
from .runner.legacy import (
    LegacyAgentRunner as LegacyAgentRunner,
)
from .server import (
    AgentLightningServer as AgentLightningServer,
)
from .store.base import (
    LightningStore as LightningStore,
    LightningStoreCapabilities as LightningStoreCapabilities,
    LightningStoreStatistics as LightningStoreStatistics,
)
from .store.client_server import (
    LightningStoreClient as LightningStoreClient,
    LightningStoreServer as LightningStoreServer,
)
from .store.memory import (
    InMemoryLightningStore as InMemoryLightningStore,
)
from .store.threading import (
    LightningStoreThreaded as LightningStoreThreaded,
)
from .tracer.agentops import (
    AgentOpsTracer as AgentOpsTracer,
)
from .tracer.base import (
    Tracer as Tracer,
    clear_active_tracer as clear_active_tracer,
    get_active_tracer as get_active_tracer,
    set_active_tracer as set_active_tracer,
)
from .tracer.dummy import (
    DummyTracer as DummyTracer,
)
from .tracer.otel import (
    OtelTracer as OtelTracer,
)
from .tracer.weave import (
    WeaveTracer as WeaveTracer,
)
from .trainer.init_utils import (
    build_component as build_component,
)
from .trainer.trainer import (
    Trainer as Trainer,
)
from .types.core import (
    Attempt as Attempt,
    AttemptedRollout as AttemptedRollout,
    AttemptStatus as AttemptStatus,
    Dataset as Dataset,
    EnqueueRolloutRequest as EnqueueRolloutRequest,
    FilterField as FilterField,
    FilterOptions as FilterOptions,
    GenericResponse as GenericResponse,
    Hook as Hook,
    PaginatedResult as PaginatedResult,
    ParallelWorkerBase as ParallelWorkerBase,
    Rollout as Rollout,
    RolloutConfig as RolloutConfig,
    RolloutLegacy as RolloutLegacy,
    RolloutMode as RolloutMode,
    RolloutRawResult as RolloutRawResult,
    RolloutRawResultLegacy as RolloutRawResultLegacy,
    RolloutStatus as RolloutStatus,
    SortOptions as SortOptions,
    Task as Task,
    TaskIfAny as TaskIfAny,
    TaskInput as TaskInput,
    Triplet as Triplet,
    Worker as Worker,
    WorkerStatus as WorkerStatus,
)
from .types.resources import (
    LLM as LLM,
    NamedResources as NamedResources,
    PromptTemplate as PromptTemplate,
    ProxyLLM as ProxyLLM,
    Resource as Resource,
    ResourcesUpdate as ResourcesUpdate,
    ResourceUnion as ResourceUnion,
)
from .types.tracer import (
    Attributes as Attributes,
    AttributeValue as AttributeValue,
    Event as Event,
    Link as Link,
    OtelResource as OtelResource,
    Span as Span,
    SpanAttributeNames as SpanAttributeNames,
    SpanContext as SpanContext,
    SpanCoreFields as SpanCoreFields,
    SpanLike as SpanLike,
    SpanNames as SpanNames,
    SpanRecordingContext as SpanRecordingContext,
    StatusCode as StatusCode,
    TraceState as TraceState,
    TraceStatus as TraceStatus,
)

__version__: str

def __getattr__(name: str) -> typing.Any: ...
