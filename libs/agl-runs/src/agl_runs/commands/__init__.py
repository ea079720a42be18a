"""``agl run``, ``agl dev`` and ``agl config``; each module has a ``command``."""
