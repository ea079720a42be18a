"""The public names; each is imported when it is first used."""

from .client import (
    Client as Client,
    DataUploadError as DataUploadError,
    EvalResult as EvalResult,
    InvalidConfigError as InvalidConfigError,
    ServerConnectionError as ServerConnectionError,
    TrainingError as TrainingError,
    TrainingResult as TrainingResult,
)
from .workers import Resource as Resource, Task as Task

__version__: str
