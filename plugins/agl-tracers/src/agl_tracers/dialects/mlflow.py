"""MLflow's autologging: what a client's function got and gave."""

from agl_tracers.dialects.keyed import KeyedDialect


class MLflow(KeyedDialect):
    """MLflow's tracing: ``mlflow.spanInputs`` and ``mlflow.spanOutputs`` of a chat model."""

    kind = ("mlflow.spanType", "CHAT_MODEL", "LLM")
    request = "mlflow.spanInputs"
    answer = "mlflow.spanOutputs"
