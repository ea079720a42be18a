"""What tells weights from others."""

import hashlib
from typing import Any

import torch


def fingerprint(*models: Any, dtype: str | None = None) -> str:
    """The first half of the SHA-256 of all weights, in the order of their names.

    Args:
        models: Whose weights.
        dtype: What they are rounded to before; None takes them as they are. In ``bfloat16`` they
            are the same whether a model was loaded in float32 or in bfloat16.
    """
    digest = hashlib.sha256()
    for model in models:
        for name, value in sorted(model.state_dict().items()):
            digest.update(name.encode())
            value = value.detach().cpu()
            if dtype is not None and value.is_floating_point():
                value = value.to(getattr(torch, dtype))
            digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]
