"""What agents may ask of the token backend: chat completions with verl's sampling parameters."""

from typing import Any, Literal

from pydantic import Field

from agl_models.completions import ChatRequest

SAMPLING = {
    *("temperature", "top_p", "top_k", "repetition_penalty", "frequency_penalty"),
    *("presence_penalty", "min_tokens", "seed", "ignore_eos"),
}


class VerlRequest(ChatRequest):
    """A chat completion request; what is None is taken from the configuration."""

    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = None
    repetition_penalty: float | None = Field(default=None, gt=0)
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    min_tokens: int | None = Field(default=None, ge=0)
    ignore_eos: bool | None = None
    tools: list[dict[str, Any]] | None = None
    parallel_tool_calls: Literal[True] | None = None

    @property
    def used_tools(self) -> list[dict[str, Any]] | None:
        """Definitions of the tools that the model may call."""
        return None if self.tool_choice == "none" else self.tools or None

    def sampling(self, defaults: dict[str, Any], max_tokens: int) -> dict[str, Any]:
        """Sampling parameters as verl's servers take them."""
        return {
            **defaults,
            **self.model_dump(include=SAMPLING, exclude_none=True),
            "max_tokens": max_tokens,
            "logprobs": True,
        }
