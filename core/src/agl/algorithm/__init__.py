"""Algorithms: the contract (``base``), the contracts of what they learn through, ``Baseline``."""
