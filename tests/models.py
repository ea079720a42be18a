"""Models as a gateway lists them."""

import json
from typing import Any

import aiohttp


def entry(name: str, url: str, **more: Any) -> dict[str, Any]:
    """A model that the server at ``url`` has."""
    params = {"model": f"hosted_vllm/{name}", "api_base": url}
    return {"model_name": name, "litellm_params": params, **more}


async def call(llm: Any, text: str, url: str = "", key: str = "", **fields: Any) -> tuple[int, Any]:
    """Status and body of a call that no tracer sees; the body is bytes where it is no JSON."""
    body = {"model": llm.model, "messages": [{"role": "user", "content": text}], **fields}
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{url or llm.endpoint}/chat/completions", json=body) as response,
    ):
        answer = await response.read()
        is_json = response.content_type == "application/json"
        return response.status, json.loads(answer) if is_json else answer


async def answer_of(llm: Any, text: str, url: str = "", **fields: Any) -> str:
    """What the model says."""
    status, answer = await call(llm, text, url, **fields)
    assert status == 200, answer
    return answer["choices"][0]["message"]["content"]
