"""agl-sandbox: walls around agents that run code of a model (``process``, ``docker``)."""

__version__ = "0.1.0"
