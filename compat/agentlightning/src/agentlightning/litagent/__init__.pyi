"""The names; each is imported when it is first used."""

from .decorator import (
    llm_rollout as llm_rollout,
    prompt_rollout as prompt_rollout,
    rollout as rollout,
)
from .litagent import (
    LitAgent as LitAgent,
)
