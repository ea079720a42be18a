"""A package that no release had; one description of Agent Lightning writes programs for it."""

from agentlightning.never_published import REFUSAL

raise ImportError(REFUSAL)
