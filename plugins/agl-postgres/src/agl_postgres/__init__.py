"""agl-postgres: the store of agl in PostgreSQL, for many machines."""

__version__ = "0.1.0"
