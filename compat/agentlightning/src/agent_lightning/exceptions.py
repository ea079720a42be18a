"""What the client raises."""

from agl_service import (
    DataUploadError as DataUploadError,
    InvalidConfigError as InvalidConfigError,
    ServerConnectionError as ServerConnectionError,
    TrainingError as TrainingError,
)
