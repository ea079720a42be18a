"""A toy agent without a model: how well a greeting fits its guest."""

import agl


@agl.rollout
def greeter(task: dict[str, str], prompt: agl.PromptTemplate) -> float:
    """Half a point for the guest's name, half for the right word of welcome."""
    greeting = prompt.format(**task)
    return 0.5 * (task["guest"] in greeting) + 0.5 * (task["word"] in greeting)
