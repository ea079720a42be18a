"""What a reader sees of a store."""

from agl.types import ProxyLLM, ResourcesUpdate
from agl_http.roles import visible


def test_a_model_at_a_gateway_is_seen_without_its_key():
    model = ProxyLLM(endpoint="http://127.0.0.1:1/v1", model="m", api_key="k", asks_for_token=True)
    times = {"create_time": 1.0, "update_time": 1.0}
    update = ResourcesUpdate(resources_id="rs-1", version=1, resources={"llm": model}, **times)
    seen = visible(update).resources["llm"]
    assert isinstance(seen, ProxyLLM)
    assert (seen.model, seen.api_key, seen.asks_for_token) == ("m", "***", True)
