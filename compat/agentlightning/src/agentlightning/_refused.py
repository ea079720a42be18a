"""What agl does not have of Agent Lightning, and what to use instead.

``store.mongo`` is ``agentlightning.store.mongo``; the path of the top level is empty. Every name
here raises ``RefusedNameError`` with its reason where it is asked for.
"""

_NAMES = """\
its stores are no collections with rules above them. Use InMemoryLightningStore, \
SqliteLightningStore, which a server offers to many machines; a store of your own subclasses \
LightningStore
  : CollectionBasedLightningStore
  store: CollectionBasedLightningStore
  store.collection: AtomicLabels AtomicMode Collection DequeBasedQueue DictBasedKeyValue
    InMemoryLightningCollections KeyValue LightningCollections ListBasedCollection Queue
  store.collection.base: Collection DuplicatedPrimaryKeyError KeyValue LightningCollections
    Queue TrackedCollection ensure_numeric merge_must_filters normalize_filter_options
    resolve_error_type resolve_sort_options tracked
  store.collection.memory: DequeBasedQueue DictBasedKeyValue InMemoryLightningCollections
    ListBasedCollection
  store.collection_based: COLLECTION_STORE_ALL_METHODS COLLECTION_STORE_PUBLIC_METHODS
    CollectionBasedLightningStore get_current_store_methods healthcheck_before tracked
use TraceToMessages().adapt(spans)
  adapter.messages: convert_to_openai_messages group_genai_dict
APO(...) finds and makes prompts by itself; see docs/howto/optimise-prompts.md
  algorithm.apo.apo: APPLY_EDIT_PROMPT_FILES GRADIENT_PROMPT_FILES RolloutResultForAPO
    VersionedPromptTemplate
it had no execute; use ClientServerExecutionStrategy
  execution.inter_process: InterProcessExecutionStrategy
agentops.init is never called, so there is nothing to bypass; use AgentOpsTracer()
  instrumentation.agentops: BypassableAuthenticatedOTLPExporter BypassableOTLPMetricExporter
    BypassableOTLPSpanExporter BypassableV3Client BypassableV4Client
nothing is sent to AgentOps; its spans are in the store: agl spans
  instrumentation.agentops: enable_agentops_service
pass tracer.get_langchain_handler() to the agent
  instrumentation.agentops_langchain: instrument_agentops_langchain langgraph_entry
    on_chain_start uninstrument_agentops_langchain
LLMProxy runs no code of LiteLLM: it attributes, streams and records calls by itself
  instrumentation.litellm: instrument_litellm patched_set_attributes uninstrument_litellm
  llm_proxy: AddLogprobs AddReturnTokenIds LightningOpenTelemetry LightningSpanExporter
    MessageInspectionMiddleware RolloutAttemptMiddleware StreamConversionMiddleware
    initialize_llm_callbacks
vLLM returns token ids by itself where return_token_ids is asked for, as LLMProxy does
  instrumentation.vllm: ChatCompletionResponsePatched chat_completion_full_generator
    instrument_vllm uninstrument_vllm
use WeaveTracer, which needs no server of Weave
  instrumentation.weave: InMemoryWeaveTraceServer get_entity_project_from_project_name_factory
    get_username init_weave_get_server_factory instrument_weave uninstrument_weave
  tracer.weave: WeaveSpanRecordingContext WeaveTracerManagedTraceServer get_timestamp_or_throw
    op_name_to_func_name random_project_name
a process may have several proxies; keep the object, or ask Algorithm.get_llm_proxy()
  llm_proxy: get_active_llm_proxy set_active_llm_proxy
a store keeps what it kept: AgentLightningServer(store=...), and .store
  server: ServerDataStore
call the methods of LightningStoreClient; the bodies are in docs/reference/wire.md
  store.client_server: DequeueManyRolloutsRequest DequeueRolloutRequest
    EnqueueManyRolloutsRequest NextSequenceIdRequest NextSequenceIdResponse QueryAttemptsRequest
    QueryResourcesRequest QueryRolloutsRequest QuerySpansRequest QueryWorkersRequest
    RolloutRequest StartAttemptRequest UpdateAttemptRequest UpdateRolloutRequest
    UpdateWorkerRequest WaitForRolloutsRequest
agl ui is the web page; agl rollouts, agl spans and agl runs write tables
  store.client_server: CachedStaticFiles
Prometheus reads /metrics of every store server
  store.client_server: LATENCY_BUCKETS
  store.collection.base: LATENCY_BUCKETS
  store.collection_based: LATENCY_BUCKETS
  store.utils: LATENCY_BUCKETS
use SqliteLightningStore('store.db') and agl store; for several servers, agl-postgres
  store.collection.mongo: MongoBasedCollection MongoBasedKeyValue MongoBasedQueue
    MongoClientPool MongoLightningCollections resolve_mongo_error_type
  store.mongo: MongoLightningStore
the store forgets nothing, so it measures nothing
  store.memory: estimate_model_size
the store moves statuses by itself, when an attempt does
  store.utils: rollout_status_from_attempt scan_unhealthy_rollouts
a trace_context makes its tracer the active one
  tracer.base: with_active_tracer_context
subclass Tracer, or OtelTracer, and use operation_context
  tracer.dummy: DummySpanRecordingContext
  tracer.otel: LightningSpanProcessor OtelSpanRecordingContext STORE_WRITE_TIMEOUT_SECONDS
    to_otel_status_code
spans go to their rollouts without one of yours
  utils.otel: get_span_processors
post to LightningStoreServer.otlp_traces_endpoint() with OpenTelemetry's own exporter
  utils.otlp: LightningStoreOTLPExporter PROTOBUF_CT handle_otlp_export spans_from_proto
use LightningStoreServer or LLMProxy with host and port, or uvicorn for an app
  utils.server_launcher: ChildEvent GunicornApp PythonServerLauncher noop_context run_gunicorn
    run_uvicorn_asyncio run_uvicorn_subprocess run_uvicorn_thread shutdown_uvicorn_server
run: agl prometheus
  cli.prometheus: create_prometheus_app ensure_prometheus_dir
tasks come from Trainer.fit(train_dataset=...)
  verl: AgentDataset LoadedDataset
  verl.dataset: AgentDataset LoadedDataset
verl's own trainers run unchanged; use VERL(config), or subclass agl_verl.manager.AglManager
  verl: AgentLightningTrainer AgentModeDaemon TaskRunner
  verl.daemon: AgentModeDaemon
  verl.entrypoint: TaskRunner
  verl.trainer: AgentLightningTrainer
rows are tensors in verl alone; see agl_verl.rows
  verl: get_left_padded_ids_and_attention_mask get_right_padded_ids_and_attention_mask
  verl.daemon: get_left_padded_ids_and_attention_mask get_right_padded_ids_and_attention_mask
verl's own servers give token ids
  verl.async_server: PatchedvLLMServer
why a row begins is in the row (row_break), and agl doctor shows it
  verl.daemon: ids_startswith log_mismatch_detail
metrics are in the run's folder; see agl runs
  verl.trainer: compute_data_metrics
"""
"""What to use, and below it of each module its names for which that is so."""

REFUSED: dict[str, dict[str, str]] = {}
_reason = _module = ""
for _line in _NAMES.splitlines():
    if not _line.startswith(" "):
        _reason = _line
        continue
    _path, _is_module, _names = _line.strip().rpartition(":")
    if _is_module:
        _module = _path
    REFUSED.setdefault(_module, {}).update(dict.fromkeys(_names.split(), _reason))
