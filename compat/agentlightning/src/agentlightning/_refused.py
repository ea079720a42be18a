"""What agl does not have of Agent Lightning, and what to use instead.

Every name here raises ``RefusedNameError`` with its reason wherever it is asked for.
"""

_NAMES = """\
its stores are no collections with rules above them. Use InMemoryLightningStore, \
SqliteLightningStore, which a server offers to many machines; a store of your own subclasses \
LightningStore
  CollectionBasedLightningStore AtomicLabels AtomicMode Collection DequeBasedQueue
  DictBasedKeyValue InMemoryLightningCollections KeyValue LightningCollections
  ListBasedCollection Queue DuplicatedPrimaryKeyError TrackedCollection ensure_numeric
  merge_must_filters normalize_filter_options resolve_error_type resolve_sort_options tracked
  COLLECTION_STORE_ALL_METHODS COLLECTION_STORE_PUBLIC_METHODS get_current_store_methods
  healthcheck_before
use TraceToMessages().adapt(spans)
  convert_to_openai_messages group_genai_dict
APO(...) finds and makes prompts by itself; see docs/howto/optimise-prompts.md
  APPLY_EDIT_PROMPT_FILES GRADIENT_PROMPT_FILES RolloutResultForAPO VersionedPromptTemplate
call self.get_store() or self.get_llm_proxy() in the method, and random.sample for batches
  batch_iter_over_dataset with_llm_proxy with_store
use build_component
  instantiate_component instantiate_from_spec load_class
use secrets.token_hex
  generate_id
times of a span are seconds, and its attributes are whole
  convert_timestamp extract_extra_fields
it had no execute; use ClientServerExecutionStrategy
  InterProcessExecutionStrategy
agentops.init is never called, so there is nothing to bypass; use AgentOpsTracer()
  BypassableAuthenticatedOTLPExporter BypassableOTLPMetricExporter BypassableOTLPSpanExporter
  BypassableV3Client BypassableV4Client
nothing is sent to AgentOps; its spans are in the store: agl spans
  enable_agentops_service
pass tracer.get_langchain_handler() to the agent
  instrument_agentops_langchain langgraph_entry on_chain_start uninstrument_agentops_langchain
LLMProxy runs no code of LiteLLM: it attributes, streams and records calls by itself
  instrument_litellm patched_set_attributes uninstrument_litellm AddLogprobs AddReturnTokenIds
  LightningOpenTelemetry LightningSpanExporter MessageInspectionMiddleware
  RolloutAttemptMiddleware StreamConversionMiddleware initialize_llm_callbacks
vLLM returns token ids by itself where return_token_ids is asked for, as LLMProxy does
  ChatCompletionResponsePatched chat_completion_full_generator instrument_vllm uninstrument_vllm
use WeaveTracer, which needs no server of Weave
  InMemoryWeaveTraceServer get_entity_project_from_project_name_factory get_username
  init_weave_get_server_factory instrument_weave uninstrument_weave WeaveSpanRecordingContext
  WeaveTracerManagedTraceServer get_timestamp_or_throw op_name_to_func_name random_project_name
a process may have several proxies; keep the object, or ask Algorithm.get_llm_proxy()
  get_active_llm_proxy set_active_llm_proxy
a store keeps what it kept: AgentLightningServer(store=...), and .store
  ServerDataStore
call the methods of LightningStoreClient; the bodies are in docs/reference/wire.md
  DequeueManyRolloutsRequest DequeueRolloutRequest EnqueueManyRolloutsRequest
  NextSequenceIdRequest NextSequenceIdResponse QueryAttemptsRequest QueryResourcesRequest
  QueryRolloutsRequest QuerySpansRequest QueryWorkersRequest RolloutRequest StartAttemptRequest
  UpdateAttemptRequest UpdateRolloutRequest UpdateWorkerRequest WaitForRolloutsRequest
agl ui is the web page; agl rollouts, agl spans and agl runs write tables
  CachedStaticFiles
Prometheus reads /metrics of every store server
  LATENCY_BUCKETS
use SqliteLightningStore('store.db') and agl store; for several servers, agl-postgres
  MongoBasedCollection MongoBasedKeyValue MongoBasedQueue MongoClientPool
  MongoLightningCollections resolve_mongo_error_type MongoLightningStore
the store forgets nothing, so it measures nothing
  estimate_model_size
the store moves statuses by itself, when an attempt does
  rollout_status_from_attempt scan_unhealthy_rollouts
emit_annotation and emit_object take nested data, and make of it what a span can hold
  check_attributes_sanity filter_and_unflatten_attributes flatten_attributes
  format_exception_attributes full_qualified_name sanitize_attribute_value sanitize_attributes
  sanitize_list_attribute_sanity unflatten_attributes
runners tell what their machine does with each heartbeat: agl.runner.heartbeat
  system_snapshot
a trace_context makes its tracer the active one
  with_active_tracer_context
subclass Tracer, or OtelTracer, and use operation_context
  DummySpanRecordingContext LightningSpanProcessor OtelSpanRecordingContext
  STORE_WRITE_TIMEOUT_SECONDS to_otel_status_code
spans go to their rollouts without one of yours
  get_span_processors
post to LightningStoreServer.otlp_traces_endpoint() with OpenTelemetry's own exporter
  LightningStoreOTLPExporter PROTOBUF_CT handle_otlp_export spans_from_proto
use LightningStoreServer or LLMProxy with host and port, or uvicorn for an app
  ChildEvent GunicornApp PythonServerLauncher noop_context run_gunicorn run_uvicorn_asyncio
  run_uvicorn_subprocess run_uvicorn_thread shutdown_uvicorn_server
run: agl prometheus
  create_prometheus_app ensure_prometheus_dir
tasks come from Trainer.fit(train_dataset=...)
  AgentDataset LoadedDataset
verl's own trainers run unchanged; use VERL(config), or subclass agl_verl.manager.AglManager
  AgentLightningTrainer AgentModeDaemon TaskRunner
rows are tensors in verl alone; see agl_verl.rows
  get_left_padded_ids_and_attention_mask get_right_padded_ids_and_attention_mask
verl's own servers give token ids
  PatchedvLLMServer
why a row begins is in the row (row_break), and agl doctor shows it
  ids_startswith log_mismatch_detail
metrics are in the run's folder; see agl runs
  compute_data_metrics
"""
"""What to use, and below it the names for which that is so."""

REFUSED: dict[str, str] = {}
_reason = ""
for _line in _NAMES.splitlines():
    if _line.startswith(" "):
        REFUSED.update(dict.fromkeys(_line.split(), _reason))
    else:
        _reason = _line

MODULES = (
    "store.collection.memory store.collection_based execution.inter_process "
    "instrumentation.agentops_langchain instrumentation.litellm instrumentation.vllm "
    "instrumentation.weave store.utils store.collection.mongo store.mongo utils.otlp "
    "utils.system_snapshot utils.id algorithm.utils "
    "verl.dataset verl.daemon verl.trainer verl.async_server"
)
"""Of the original, below ``agentlightning``, in which all is refused; they have no file."""
