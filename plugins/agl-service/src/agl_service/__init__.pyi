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
from .trajectories import Trajectory as Trajectory, Transition as Transition
from .workers import Resource as Resource, Task as Task

__version__: str
