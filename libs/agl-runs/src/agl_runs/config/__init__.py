"""The file of a run: ``file`` reads and checks it, with ``overrides`` and ``datasets``."""
