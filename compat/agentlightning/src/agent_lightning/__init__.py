"""The import name that one description of Agent Lightning has for the client of agl-service."""

from agl_service import (
    Client as Client,
    EvalResult as EvalResult,
    Resource as Resource,
    Task as Task,
    TrainingResult as TrainingResult,
    Trajectory as Trajectory,
    Transition as Transition,
)
