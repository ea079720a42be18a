"""One module per verb of ``agl``; each has a ``command``."""
