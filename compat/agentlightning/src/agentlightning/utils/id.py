"""Ids."""

import secrets

from agentlightning._names import rest


def generate_id(length: int) -> str:
    """So many random hexadecimal digits."""
    return secrets.token_hex((length + 1) // 2)[:length]


__getattr__ = rest(__name__)
