"""What a client of a training server raises."""

from agl.errors import ConfigError, DatasetError, RunError


class ServerConnectionError(RunError, ConnectionError):
    """The training server gives no answer, or does not know the user."""


class AuthenticationError(ServerConnectionError):
    """The token is missing or was refused."""


class DataUploadError(DatasetError):
    """Tasks were refused; the message names the line."""


class InvalidConfigError(ConfigError):
    """An option was refused."""


class TrainingError(RunError):
    """A job failed or was stopped, or there is no such job, data or checkpoint."""
