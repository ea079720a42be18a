"""The commands ``agl store`` and ``agl token``."""
