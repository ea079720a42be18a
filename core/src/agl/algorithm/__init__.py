"""Algorithms: the contract (``base``), and the contracts of what they learn through."""
