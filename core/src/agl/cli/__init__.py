"""The ``agl`` command."""
