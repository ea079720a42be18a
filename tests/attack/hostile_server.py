"""A store's server and a gateway, in a process of their own, until their input ends.

Prints a line of JSON: where they are, and the ids of some records.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import agl
from agl.http.layers import EVENTS, JSON, send_whole
from agl.http.serving import ServerThread
from agl_gateway import LLMProxy

CHOICE = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
HEAD = {"id": "c", "created": 1, "model": "m"}
WHOLE = {**HEAD, "object": "chat.completion", "choices": [CHOICE], "usage": USAGE}
PIECE = {"index": 0, "delta": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
CHUNK = {**HEAD, "object": "chat.completion.chunk", "choices": [PIECE], "usage": USAGE}
TEXT = {**HEAD, "object": "text_completion", "usage": USAGE}
TEXT["choices"] = [{"index": 0, "text": "yes", "finish_reason": "stop"}]


async def model(scope: Any, receive: Any, send: Any) -> None:
    """Answers whatever it is asked: what breaks is the gateway's."""
    if scope["type"] == "lifespan":
        return None
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    if scope["path"].endswith("/chat/completions"):
        if json.loads(body).get("stream") is True:
            stream = b"data: %s\n\ndata: [DONE]\n\n" % json.dumps(CHUNK).encode()
            return await send_whole(send, 200, stream, EVENTS)
        return await send_whole(send, 200, json.dumps(WHOLE).encode(), JSON)
    return await send_whole(send, 200, json.dumps(TEXT).encode(), JSON)


async def main(file: Path) -> None:
    store = agl.SqliteLightningStore(str(file))
    ids = {"resources_id": (await store.add_resources({})).resources_id, "worker_id": "w"}
    begun = await store.start_rollout("a task", worker_id="w")
    await store.add_span(span := agl.Span.from_attributes(
        attributes={"a": 1, "b": [1.5], "c": "d", "e": True},
        rollout_id=begun.rollout_id,
        attempt_id=begun.attempt.attempt_id,
    ))  # fmt: skip
    ids |= {"rollout_id": begun.rollout_id, "attempt_id": begun.attempt.attempt_id}
    server = agl.LightningStoreServer(store, port=0, open=True)
    await server.start()
    backend = ServerThread(model)
    backend.start()
    entry = {"model": "hosted_vllm/m", "api_base": f"{backend.url}/v1", "api_key": "k"}
    forced = {"all": {"temperature": 0.5, "top_p": None, "max_tokens": 3}}
    proxy = LLMProxy(
        open=True,
        port=0,
        store=store,
        model_list=[{"model_name": "m", "litellm_params": entry, "forced_parameters": forced}],
        num_retries=0,
    )
    await proxy.start()
    said = {"store": server.endpoint, "gateway": proxy.address.url(), "ids": ids}
    print(json.dumps(said | {"span": span.model_dump(mode="json")}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await proxy.stop()
    await server.close()
    backend.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
