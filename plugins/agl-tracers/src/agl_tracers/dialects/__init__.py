"""Dialects of tracers that are not of agl: each reads the model calls of one library."""
