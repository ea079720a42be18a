"""Runs as records: a folder, a start, what differs, going on, what a run came to; ``agl run``."""
