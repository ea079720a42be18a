"""The variables of the environment that the scripts of this folder read, when they need them."""

import os
from pathlib import Path

FOLDER = Path(__file__).parent


def data_folder() -> Path:
    """Where ``prepare_data.py`` wrote: ``CHARTQA_DATA_DIR``, else ``data`` beside this file."""
    return Path(os.environ.get("CHARTQA_DATA_DIR") or FOLDER / "data").resolve()


def openai_base() -> str | None:
    """Of the model: ``OPENAI_API_BASE`` or ``OPENAI_BASE_URL``; None where neither is set."""
    return os.environ.get("OPENAI_API_BASE") or os.environ.get("OPENAI_BASE_URL")


def openai_key() -> str | None:
    """``OPENAI_API_KEY``; a server of one's own needs none."""
    return os.environ.get("OPENAI_API_KEY")


def openai_model(default: str) -> str:
    """``OPENAI_MODEL``: the model that sees the charts."""
    return os.environ.get("OPENAI_MODEL", default)


def uses_llm_proxy() -> bool:
    """``USE_LLM_PROXY=1``: through agl's gateway, to a server on this machine."""
    return os.environ.get("USE_LLM_PROXY", "0") == "1"
