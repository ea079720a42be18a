"""agl-inspect: what people read of a store, and the commands that show it."""

__version__ = "0.1.0"
