"""A gateway in front of a model, and a store that has every call: run one, call it, look.

    python llm_proxy.py openai gpt-4.1-mini               # terminal 1: OPENAI_API_KEY is set
    python llm_proxy.py vllm Qwen/Qwen2.5-0.5B-Instruct   # or: it starts a vLLM server before
    python llm_proxy.py test gpt-4.1-mini --store URL     # terminal 2: the URL that 1 printed

``openai`` takes its address from ``OPENAI_BASE_URL`` (or ``OPENAI_API_BASE``), so any
OpenAI-compatible server will do. ``test`` begins a rollout, makes two calls at its address,
``/rollout/<id>/attempt/<id>/v1``, and prints the spans that the gateway left in the store. A vLLM
server gives token ids and log-probabilities as well; OpenAI's own do not.
"""

import argparse
import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator

from vllm_server import vllm_server

import agl

OPENAI = "https://api.openai.com/v1"


@contextlib.asynccontextmanager
async def serve(
    model: str, params: dict[str, str], store_port: int, proxy_port: int
) -> AsyncGenerator[str]:
    """Store and gateway, for as long as the block lasts; yields the store's address, with a token.

    Args:
        model: What agents ask for.
        params: Of LiteLLM's form: ``model``, ``api_base``, ``api_key``.
        store_port: Of the store; 0 for a free one.
        proxy_port: Of the gateway; 0 for a free one.
    """
    server = agl.LightningStoreServer(agl.InMemoryLightningStore(), "127.0.0.1", store_port)
    proxy = agl.LLMProxy(
        port=proxy_port, model_list=[{"model_name": model, "litellm_params": params}], store=server
    )
    await server.start()
    await proxy.start()
    try:
        # An agent finds the gateway as a resource, with the key that opens it.
        await server.add_resources({"main_llm": proxy.as_resource()})
        yield server.endpoint
    finally:
        await proxy.stop()
        await server.stop()


async def call(model: str, store_url: str) -> list[agl.Span]:
    """A rollout with two calls; returns its spans, in the order of their numbers."""
    from openai import AsyncOpenAI

    store = agl.LightningStoreClient(store_url)
    try:
        update = await store.get_latest_resources()
        if update is None:
            raise SystemExit("the store has no resource main_llm; start the server of this script")
        resource = update.resources["main_llm"]
        assert isinstance(resource, agl.ProxyLLM)
        rollout = await store.start_rollout(input={"origin": "llm_proxy.py"})
        llm = resource.with_attempted_rollout(rollout)
        async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
            for question in ("What is the capital of France?", "And of Norway?"):
                answer = await client.chat.completions.create(
                    model=model, messages=[{"role": "user", "content": question}]
                )
                print(f"{question}  {answer.choices[0].message.content}")
        ids = (rollout.rollout_id, rollout.attempt.attempt_id)
        spans: list[agl.Span] = []
        while len(spans) < 2:  # the gateway writes them within a tenth of a second
            await asyncio.sleep(0.05)
            spans = list(await store.query_spans(*ids))
        await store.update_attempt(*ids, status="succeeded")
        return spans
    finally:
        await store.close()


async def run_server(options: argparse.Namespace) -> None:
    """Serve until the process is ended."""
    if options.mode == "vllm":
        server = vllm_server(options.model)
    else:
        base = os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE") or OPENAI
        server = contextlib.nullcontext(base)
    with server as address:
        kind = "hosted_vllm" if options.mode == "vllm" else "openai"
        params = {"model": f"{kind}/{options.model}", "api_base": address}
        if options.mode == "openai":
            params["api_key"] = os.environ.get("OPENAI_API_KEY", "none")
        async with serve(options.model, params, options.store_port, options.proxy_port) as url:
            print(f"python llm_proxy.py test {options.model} --store {url}", flush=True)
            await asyncio.Event().wait()


def main() -> None:
    """Serve, or call what is served."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=["openai", "vllm", "test"])
    parser.add_argument("model")
    parser.add_argument("--store-port", type=int, default=0, help="0: a free one")
    parser.add_argument("--proxy-port", type=int, default=0, help="0: a free one")
    parser.add_argument("--store", help="of test: the address that the server printed")
    options = parser.parse_args()
    if options.mode == "test":
        if not options.store:
            parser.error("test needs --store URL, as the server prints it")
        for span in asyncio.run(call(options.model, options.store)):
            ids = span.attributes.get("response_token_ids")
            print(f"{span.sequence_id}  {span.name}  token ids: {len(ids) if ids else 'none'}")
        return
    agl.setup_logging("WARNING")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run_server(options))


if __name__ == "__main__":
    main()
