"""An agent that asks its model, through the gateway."""

from openai import OpenAI

import agl


@agl.rollout
def greeter(task: dict[str, str], llm: agl.LLM) -> float:
    """Greet by name; the reward is whether the name is in the answer."""
    client = OpenAI(base_url=llm.get_base_url(), api_key=llm.api_key)
    answer = client.chat.completions.create(
        model=llm.model, messages=[{"role": "user", "content": f"Greet {task['name']}."}]
    )
    return float(task["name"] in (answer.choices[0].message.content or ""))
