"""The public names; each is imported when it is first used."""

from .client import Client as Client
from .errors import (
    AuthenticationError as AuthenticationError,
    DataUploadError as DataUploadError,
    InvalidConfigError as InvalidConfigError,
    ServerConnectionError as ServerConnectionError,
    TrainingError as TrainingError,
)
from .results import EvalResult as EvalResult, TrainingResult as TrainingResult
from .trajectories import Trajectory as Trajectory, Transition as Transition
from .workers import Resource as Resource, Task as Task

__version__: str
