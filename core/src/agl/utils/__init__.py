"""Helpers that users call by name: span attributes (``otel``), server settings."""

from agl.utils.server_launcher import PythonServerLauncherArgs as PythonServerLauncherArgs
