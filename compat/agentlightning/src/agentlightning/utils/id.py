"""Ids."""

import secrets


def generate_id(length: int) -> str:
    """So many random hexadecimal digits."""
    return secrets.token_hex((length + 1) // 2)[:length]
