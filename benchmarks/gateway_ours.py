"""Our gateway on an SQLite file, for ``gateway.py``: ``gateway_ours.py BACKEND_PORT FOLDER``."""

import asyncio
import json
import sys
from pathlib import Path
from urllib.parse import urlsplit

from agl_gateway import LLMProxy
from agl_sqlite import SqliteLightningStore

NUM_ATTEMPTS = 8


async def main(backend_port: str, folder: str) -> None:
    """Serve until the process is ended; prints the ports and paths of attempts."""
    store = SqliteLightningStore(Path(folder, "store.db"))
    params = {"model": "hosted_vllm/mock", "api_base": f"http://127.0.0.1:{backend_port}/v1"}
    models = [{"model_name": "mock", "litellm_params": params}]
    proxy = LLMProxy(model_list=models, store=store)
    await proxy.start()
    rollouts = [await store.start_rollout(input="task") for _ in range(NUM_ATTEMPTS)]
    attempts = [proxy.as_resource(r.rollout_id, r.attempt.attempt_id) for r in rollouts]
    paths = [urlsplit(llm.endpoint).path for llm in attempts]  # each with its token
    print(json.dumps({"port": proxy.port, "paths": paths}), flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        await proxy.stop()
        await store.close()


if __name__ == "__main__":
    import signal

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asyncio.run(main(*sys.argv[1:]))
