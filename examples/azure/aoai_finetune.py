"""``azure-sft`` with its settings from the environment: see ``.env.example``.

The algorithm itself is ``AzureSFT`` of agl-azure: roll out, keep the best conversations, upload
them, have one job train on them, deploy what came of it, measure, go on with that. Options that
0.3's example had by other names:

| there | here |
|---|---|
| ``finetune_every_n_rollouts`` | ``tasks_per_iteration`` times ``rollouts_per_task`` |
| ``data_filter_ratio`` | ``keep_fraction`` |
| ``max_deployments`` | the same |
"""

import os
from typing import Any

NEEDED = {
    "AZURE_OPENAI_ENDPOINT": "endpoint",
    "AZURE_SUBSCRIPTION_ID": "subscription_id",
    "AZURE_RESOURCE_GROUP": "resource_group",
}
DEFAULTS = {
    "AZURE_OPENAI_DEPLOYMENT": ("base_deployment", "gpt-4.1-mini"),
    "AZURE_OPENAI_MODEL": ("base_model", "gpt-4.1-mini-2025-04-14"),
}


def azure_sft(**options: Any) -> Any:
    """An ``AzureSFT`` on the resource that the environment names.

    Args:
        **options: Of ``AzureSFT``; they win over the environment.

    Raises:
        KeyError: A variable is missing; the message names all that are.
    """
    from agl_azure import AzureSFT

    missing = [
        name for name, option in NEEDED.items() if option not in options and name not in os.environ
    ]
    if missing:
        raise KeyError(f"set {', '.join(missing)}: see .env.example beside this file")
    given = {option: os.environ[name] for name, option in NEEDED.items() if name in os.environ}
    for name, (option, default) in DEFAULTS.items():
        given[option] = os.environ.get(name, default)
    return AzureSFT(**{**given, **options})
