"""Agents: the contract (``base``), decorated functions, and what is injected into them."""
