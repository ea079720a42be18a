"""agl-harbor: tasks and agents of Harbor as environments of agl."""

__version__ = "0.1.0"
