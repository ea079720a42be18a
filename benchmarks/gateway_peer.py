"""0.3.0's gateway and store, for ``gateway.py --peer``: ``gateway_peer.py BACKEND_PORT FOLDER``.

Runs with the interpreter of an environment that has agentlightning 0.3.0, by its public interface.
"""

import asyncio
import json
import socket
import sys

import agentlightning as agl


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def main(backend_port: str, folder: str) -> None:
    """Serve until the process is ended; prints the ports and paths of attempts."""
    store = agl.LightningStoreServer(agl.InMemoryLightningStore(), "127.0.0.1", free_port())
    await store.start()
    params = {
        "model": "hosted_vllm/mock",
        "api_base": f"http://127.0.0.1:{backend_port}/v1",
        "api_key": "none",
    }
    proxy = agl.LLMProxy(
        port=free_port(), model_list=[{"model_name": "mock", "litellm_params": params}], store=store
    )
    await proxy.start()
    rollouts = [await store.start_rollout(input="task") for _ in range(8)]
    paths = [f"/rollout/{r.rollout_id}/attempt/{r.attempt.attempt_id}/v1" for r in rollouts]
    resource = proxy.as_resource(model="mock")
    port = int(resource.endpoint.split("//")[1].split("/")[0].rsplit(":", 1)[1])
    print(json.dumps({"port": port, "paths": paths}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
