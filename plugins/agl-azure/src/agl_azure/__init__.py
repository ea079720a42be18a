"""agl-azure: fine-tuning by Azure OpenAI on what the agent itself did well (``azure-sft``)."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_azure.algorithm import AzureSFT as AzureSFT

__version__ = "0.1.0"

__all__ = ["AzureSFT", "__version__"]


def __getattr__(name: str) -> Any:
    if name != "AzureSFT":
        raise AttributeError(f"module 'agl_azure' has no attribute {name!r}")
    from agl_azure.algorithm import AzureSFT

    return AzureSFT
