"""What agl does not have of Agent Lightning, module by module, and what to use instead.

``store.mongo`` is ``agentlightning.store.mongo``; the path of the top level is empty. Every name
here raises ``RefusedNameError`` with its reason where it is asked for.
"""

_COLLECTIONS = (
    "its stores are no collections with rules above them. Use InMemoryLightningStore, "
    "SqliteLightningStore, which a server offers to many machines; a store of your own subclasses "
    "LightningStore"
)
_MONGO = "use SqliteLightningStore('store.db'), which agl store offers to many machines"
_LITELLM = "LLMProxy runs no code of LiteLLM: it attributes, streams and records calls by itself"
_TRACER = "subclass Tracer, or OtelTracer, and use operation_context"
_AGENTOPS = "agentops.init is never called, so there is nothing to bypass; use AgentOpsTracer()"
_NOTHING_SENT = "nothing is sent to AgentOps; its spans are in the store: agl spans"
_WIRE = "call the methods of LightningStoreClient; the bodies are in docs/reference/wire.md"
_APO = "APO(...) finds and makes prompts by itself; see docs/howto/optimise-prompts.md"
_RULES = "the store moves statuses by itself, when an attempt does"
_SERVERS = "use LightningStoreServer or LLMProxy with host and port, or uvicorn for an app"
_VERL = (
    "verl's own trainers run unchanged; use VERL(config), or subclass agl_verl.manager.AglManager"
)
_MISMATCH = "why a row begins is in the row (row_break), and agl doctor shows it"
_PADDING = "rows are tensors in verl alone; see agl_verl.rows"
_OTLP = "post to LightningStoreServer.otlp_traces_endpoint() with OpenTelemetry's own exporter"
_METRICS = "Prometheus reads /metrics of every store server"

REFUSED: dict[str, dict[str, str]] = {
    "": {"CollectionBasedLightningStore": _COLLECTIONS},
    "adapter.messages": dict.fromkeys(
        ("convert_to_openai_messages", "group_genai_dict"), "use TraceToMessages().adapt(spans)"
    ),
    "algorithm.apo.apo": dict.fromkeys(
        (
            "APPLY_EDIT_PROMPT_FILES",
            "GRADIENT_PROMPT_FILES",
            "RolloutResultForAPO",
            "VersionedPromptTemplate",
        ),
        _APO,
    ),
    "execution.inter_process": {
        "InterProcessExecutionStrategy": "it had no execute; use ClientServerExecutionStrategy"
    },
    "instrumentation.agentops": {
        "BypassableAuthenticatedOTLPExporter": _AGENTOPS,
        "BypassableOTLPMetricExporter": _AGENTOPS,
        "BypassableOTLPSpanExporter": _AGENTOPS,
        "BypassableV3Client": _AGENTOPS,
        "BypassableV4Client": _AGENTOPS,
        "enable_agentops_service": _NOTHING_SENT,
    },
    "instrumentation.agentops_langchain": dict.fromkeys(
        (
            "instrument_agentops_langchain",
            "langgraph_entry",
            "on_chain_start",
            "uninstrument_agentops_langchain",
        ),
        "pass tracer.get_langchain_handler() to the agent",
    ),
    "instrumentation.litellm": dict.fromkeys(
        ("instrument_litellm", "patched_set_attributes", "uninstrument_litellm"), _LITELLM
    ),
    "instrumentation.vllm": dict.fromkeys(
        (
            "ChatCompletionResponsePatched",
            "chat_completion_full_generator",
            "instrument_vllm",
            "uninstrument_vllm",
        ),
        "vLLM returns token ids by itself where return_token_ids is asked for, as LLMProxy does",
    ),
    "instrumentation.weave": dict.fromkeys(
        (
            "InMemoryWeaveTraceServer",
            "get_entity_project_from_project_name_factory",
            "get_username",
            "init_weave_get_server_factory",
            "instrument_weave",
            "uninstrument_weave",
        ),
        "use WeaveTracer, which needs no server of Weave",
    ),
    "llm_proxy": {
        **dict.fromkeys(
            (
                "AddLogprobs",
                "AddReturnTokenIds",
                "LightningOpenTelemetry",
                "LightningSpanExporter",
                "MessageInspectionMiddleware",
                "RolloutAttemptMiddleware",
                "StreamConversionMiddleware",
                "initialize_llm_callbacks",
            ),
            _LITELLM,
        ),
        **dict.fromkeys(
            ("get_active_llm_proxy", "set_active_llm_proxy"),
            "a process may have several proxies; keep the object, or ask Algorithm.get_llm_proxy()",
        ),
    },
    "server": {
        "ServerDataStore": "a store keeps what it kept: AgentLightningServer(store=...), and .store"
    },
    "store": {"CollectionBasedLightningStore": _COLLECTIONS},
    "store.client_server": {
        **dict.fromkeys(
            (
                "DequeueManyRolloutsRequest",
                "DequeueRolloutRequest",
                "EnqueueManyRolloutsRequest",
                "NextSequenceIdRequest",
                "NextSequenceIdResponse",
                "QueryAttemptsRequest",
                "QueryResourcesRequest",
                "QueryRolloutsRequest",
                "QuerySpansRequest",
                "QueryWorkersRequest",
                "RolloutRequest",
                "StartAttemptRequest",
                "UpdateAttemptRequest",
                "UpdateRolloutRequest",
                "UpdateWorkerRequest",
                "WaitForRolloutsRequest",
            ),
            _WIRE,
        ),
        "CachedStaticFiles": "there is no web page yet; use agl rollouts, agl spans and agl runs",
        "LATENCY_BUCKETS": _METRICS,
    },
    "store.collection": dict.fromkeys(
        (
            "AtomicLabels",
            "AtomicMode",
            "Collection",
            "DequeBasedQueue",
            "DictBasedKeyValue",
            "InMemoryLightningCollections",
            "KeyValue",
            "LightningCollections",
            "ListBasedCollection",
            "Queue",
        ),
        _COLLECTIONS,
    ),
    "store.collection.base": {
        **dict.fromkeys(
            (
                "Collection",
                "DuplicatedPrimaryKeyError",
                "KeyValue",
                "LightningCollections",
                "Queue",
                "TrackedCollection",
                "ensure_numeric",
                "merge_must_filters",
                "normalize_filter_options",
                "resolve_error_type",
                "resolve_sort_options",
                "tracked",
            ),
            _COLLECTIONS,
        ),
        "LATENCY_BUCKETS": _METRICS,
    },
    "store.collection.memory": dict.fromkeys(
        (
            "DequeBasedQueue",
            "DictBasedKeyValue",
            "InMemoryLightningCollections",
            "ListBasedCollection",
        ),
        _COLLECTIONS,
    ),
    "store.collection.mongo": dict.fromkeys(
        (
            "MongoBasedCollection",
            "MongoBasedKeyValue",
            "MongoBasedQueue",
            "MongoClientPool",
            "MongoLightningCollections",
            "resolve_mongo_error_type",
        ),
        _MONGO,
    ),
    "store.collection_based": {
        **dict.fromkeys(
            (
                "COLLECTION_STORE_ALL_METHODS",
                "COLLECTION_STORE_PUBLIC_METHODS",
                "CollectionBasedLightningStore",
                "get_current_store_methods",
                "healthcheck_before",
                "tracked",
            ),
            _COLLECTIONS,
        ),
        "LATENCY_BUCKETS": _METRICS,
    },
    "store.memory": {"estimate_model_size": "the store forgets nothing, so it measures nothing"},
    "store.mongo": {"MongoLightningStore": _MONGO},
    "store.utils": {
        "rollout_status_from_attempt": _RULES,
        "scan_unhealthy_rollouts": _RULES,
        "LATENCY_BUCKETS": _METRICS,
    },
    "tracer.base": {
        "with_active_tracer_context": "a trace_context makes its tracer the active one",
    },
    "tracer.dummy": {"DummySpanRecordingContext": _TRACER},
    "tracer.otel": dict.fromkeys(
        (
            "LightningSpanProcessor",
            "OtelSpanRecordingContext",
            "STORE_WRITE_TIMEOUT_SECONDS",
            "to_otel_status_code",
        ),
        _TRACER,
    ),
    "tracer.weave": dict.fromkeys(
        (
            "WeaveSpanRecordingContext",
            "WeaveTracerManagedTraceServer",
            "get_timestamp_or_throw",
            "op_name_to_func_name",
            "random_project_name",
        ),
        "use WeaveTracer, which needs no server of Weave",
    ),
    "utils.otel": {"get_span_processors": "spans go to their rollouts without one of yours"},
    "utils.otlp": dict.fromkeys(
        ("LightningStoreOTLPExporter", "PROTOBUF_CT", "handle_otlp_export", "spans_from_proto"),
        _OTLP,
    ),
    "utils.server_launcher": dict.fromkeys(
        (
            "ChildEvent",
            "GunicornApp",
            "PythonServerLauncher",
            "noop_context",
            "run_gunicorn",
            "run_uvicorn_asyncio",
            "run_uvicorn_subprocess",
            "run_uvicorn_thread",
            "shutdown_uvicorn_server",
        ),
        _SERVERS,
    ),
    "cli.prometheus": dict.fromkeys(
        ("create_prometheus_app", "ensure_prometheus_dir"), "run: agl prometheus"
    ),
    "verl": {
        "AgentDataset": "tasks come from Trainer.fit(train_dataset=...)",
        "AgentLightningTrainer": _VERL,
        "AgentModeDaemon": _VERL,
        "LoadedDataset": "tasks come from Trainer.fit(train_dataset=...)",
        "TaskRunner": _VERL,
        "get_left_padded_ids_and_attention_mask": _PADDING,
        "get_right_padded_ids_and_attention_mask": _PADDING,
    },
    "verl.async_server": {"PatchedvLLMServer": "verl's own servers give token ids"},
    "verl.daemon": {
        "AgentModeDaemon": _VERL,
        "get_left_padded_ids_and_attention_mask": _PADDING,
        "get_right_padded_ids_and_attention_mask": _PADDING,
        "ids_startswith": _MISMATCH,
        "log_mismatch_detail": _MISMATCH,
    },
    "verl.dataset": dict.fromkeys(
        ("AgentDataset", "LoadedDataset"), "tasks come from Trainer.fit(train_dataset=...)"
    ),
    "verl.entrypoint": {"TaskRunner": _VERL},
    "verl.trainer": {
        "AgentLightningTrainer": _VERL,
        "compute_data_metrics": "metrics are in the run's folder; see agl runs",
    },
}
