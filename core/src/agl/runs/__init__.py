"""Runs: their names and folders, what is written down of them, and going on with one."""
