"""Every error that agl raises on purpose, as one tree under ``AglError``.

A command ends with exit code 2 where the request was wrong (``ConfigError``, ``PluginError``,
``InvalidQueryError``, ``StoreUnavailableError``), and with 1 where the run failed, also if ``agl
run`` has no store. Each error takes one argument, the message, and so survives pickling.
"""


class AglError(Exception):
    """Base of every error that agl raises on purpose."""


class ConfigError(AglError, ValueError):
    """A configuration, option or argument is wrong. Raised before any process starts."""


class DatasetError(ConfigError):
    """A dataset is missing, empty, or not JSON, JSONL, CSV or Parquet."""


class UnknownArgumentError(ConfigError, TypeError):
    """A function was given a keyword that it does not know."""


class UnusedDatasetError(ConfigError, TypeError):
    """A dataset was given to an algorithm that does not take it."""


class PluginError(AglError):
    """Base of what can go wrong with installed components."""


class UnknownComponentError(PluginError, LookupError):
    """No installed distribution offers this name in this group."""


class DuplicateComponentError(PluginError):
    """Two distributions offer the same name in one group."""


class BrokenComponentError(PluginError, ImportError):
    """A component is installed, and importing it fails."""


class MissingPluginError(UnknownComponentError, ImportError):
    """A component or a public name lives in a package of ours that is not installed."""


class StoreError(AglError, RuntimeError):
    """A store refused an operation or failed."""


class UnknownRecordError(StoreError, ValueError):
    """The store has no record of that id."""


class InvalidTransitionError(StoreError, ValueError):
    """A status change that the state machine does not allow."""


class ReplacedError(InvalidTransitionError):
    """A start of a run would write after another start has taken over. Nothing was stored."""


class ConflictError(StoreError, ValueError):
    """A document is stored in another version than its writer expects. Nothing was stored."""


class InvalidQueryError(StoreError, ValueError):
    """A filter, sort field, limit or offset that does not exist or makes no sense."""


class InvalidRecordError(StoreError, ValueError):
    """A record holds what no store keeps: NaN, say. Nothing was stored."""


class DamagedRecordError(StoreError):
    """What the store's file holds of a record cannot be read. Others can."""


class NotAllowedError(StoreError, PermissionError):
    """A token was shown whose role may not do that, or not to this record."""


class NotSupportedError(StoreError, NotImplementedError):
    """The store does not have this method."""


class StoreUnavailableError(StoreError, ConnectionError):
    """The store cannot be reached, or its file cannot be opened."""


class StoreAwayError(StoreUnavailableError):
    """No server of the store answers. It may be back."""


class StoreDiskError(StoreUnavailableError):
    """The disk of the store is full or fails. Nothing was stored, and it may be asked again."""


class GatewayError(AglError, ConnectionError):
    """A gateway cannot say that it has recorded every model call of an attempt."""


class TracerError(AglError, RuntimeError):
    """A tracer failed, or an emitter was called while no tracer was active."""


class AgentResultError(AglError, TypeError):
    """An agent returned neither None, numbers, nor a list of spans."""


class RolloutTimeoutError(AglError, TimeoutError):
    """An attempt ran longer than its ``timeout_seconds``."""


class AdapterError(AglError, ValueError):
    """Spans that an adapter cannot read."""


class RunError(AglError, RuntimeError):
    """The run failed after it had started."""


class AlgorithmError(RunError):
    """The algorithm raised; the cause is chained."""


class StoppedError(RunError):
    """The run has stopped before its end, at a point from which it can go on."""


class EndedEarlyError(StoppedError, SystemExit):
    """What ``fit`` makes of a ``StoppedError``; uncaught, it ends a script without a traceback."""

    code = property(str)  # pyright: ignore[reportAssignmentType]: what Python writes as it exits


class RunnerCrashError(RunError):
    """Runner processes died and could not be replaced."""


class RunnerStuckError(RunnerCrashError):
    """An agent did not return at its deadline, and this runner shall be replaced."""


def is_away(error: BaseException) -> bool:
    """Whether it says that the store is gone; one with a full disk may take the next record."""
    return isinstance(error, StoreUnavailableError) and not isinstance(error, StoreDiskError)


def install_line(*arguments: str) -> str:
    """How to install a package, after options of pip; ours from a clone.

    No package index has ours, so anybody could publish something under their names there.
    """
    import json
    import shlex
    from pathlib import Path

    name = arguments[-1].partition("[")[0]
    catalogue = Path(__file__).parent / "utils/catalogue.json"
    if name not in json.loads(catalogue.read_text("utf-8"))["packages"]:
        return shlex.join(["pip", "install", *arguments])
    line = shlex.join(["python", "install.py", *arguments])
    return f"{line} (in a clone of agl: no package index has {name})"
