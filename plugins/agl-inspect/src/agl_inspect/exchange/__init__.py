"""Data out of a store, for other programs, and data of other programs into one."""
