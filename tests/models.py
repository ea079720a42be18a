"""Models as a gateway lists them."""

from typing import Any


def entry(name: str, url: str, **more: Any) -> dict[str, Any]:
    """A model that the server at ``url`` has."""
    params = {"model": f"hosted_vllm/{name}", "api_base": url}
    return {"model_name": name, "litellm_params": params, **more}
