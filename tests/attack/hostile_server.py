"""A store's server and a gateway that ask for tokens, in a process of their own.

It prints a line of JSON: where they are, a span of the first attempt that was claimed, and of each
attempt the ids and tokens. It ends when its input does.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import agl
from agl_gateway import LLMProxy
from agl_http.layers import EVENTS, JSON, send_whole
from agl_http.server import ServerThread
from agl_http.tokens import issue_token, model_token

CHOICE = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
HEAD = {"id": "c", "created": 1, "model": "m"}
WHOLE = {**HEAD, "object": "chat.completion", "choices": [CHOICE], "usage": USAGE}
PIECE = {"index": 0, "delta": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
CHUNK = {**HEAD, "object": "chat.completion.chunk", "choices": [PIECE], "usage": USAGE}
TEXT = {**HEAD, "object": "text_completion", "usage": USAGE}
TEXT["choices"] = [{"index": 0, "text": "yes", "finish_reason": "stop"}]
ATTEMPTS = 300
"""So many, as a hostile request may end the one that it is about."""


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
        try:
            stream = json.loads(body).get("stream")
        except ValueError:  # a number of 5,000 digits
            return await send_whole(send, 400, b"{}", JSON)
        if stream is True:
            stream = b"data: %s\n\ndata: [DONE]\n\n" % json.dumps(CHUNK).encode()
            return await send_whole(send, 200, stream, EVENTS)
        return await send_whole(send, 200, json.dumps(WHOLE).encode(), JSON)
    return await send_whole(send, 200, json.dumps(TEXT).encode(), JSON)


async def main(file: Path) -> None:
    store = agl.SqliteLightningStore(str(file))
    server = agl.LightningStoreServer(store, port=0)
    await server.start()
    resources_id = (await store.add_resources({})).resources_id
    whole = {role: await issue_token(store, role) for role in ("admin", "runner", "reader")}
    attempts: list[dict[str, Any]] = []
    for _ in range(ATTEMPTS):
        begun = await store.start_rollout("a task", worker_id="w")
        of = begun.rollout_id, begun.attempt.attempt_id
        token = await issue_token(store, "attempt", *of)
        ids = {"rollout_id": of[0], "attempt_id": of[1], "worker_id": "w"}
        tokens = whole | {"attempt": token, "model": model_token(token)}
        attempts.append({"ids": ids | {"resources_id": resources_id}, "tokens": tokens})
    await store.add_span(span := agl.Span.from_attributes(
        attributes={"a": 1, "b": [1.5], "c": "d", "e": True},
        rollout_id=attempts[0]["ids"]["rollout_id"],
        attempt_id=attempts[0]["ids"]["attempt_id"],
    ))  # fmt: skip
    backend = ServerThread(model)
    backend.start()
    entry = {"model": "hosted_vllm/m", "api_base": f"{backend.url}/v1", "api_key": "k"}
    forced = {"all": {"temperature": 0.5, "top_p": None, "max_tokens": 3}}
    served = {"model_name": "m", "litellm_params": entry, "forced_parameters": forced}
    proxy = LLMProxy(port=0, store=store, model_list=[served], num_retries=0)
    await proxy.start()
    said = {"store": server.address, "gateway": proxy.address.url(), "key": proxy.api_key}
    said |= {"span": span.model_dump(mode="json"), "attempts": attempts}
    print(json.dumps(said), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await proxy.stop()
    await server.close()
    backend.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
