import asyncio
import json
import threading
from collections.abc import Callable

import aiohttp
import pytest

from agl.types import AttemptedRollout, Span
from agl_gateway import LLMProxy
from agl_testing.echo_llm import EchoLLM, RawReply

SCHEMA = {"type": "object", "properties": {"room": {"type": "string"}}}
LOOK = {"name": "look", "description": "Look into a room", "parameters": SCHEMA}
CHAT_TOOL = {"type": "function", "function": LOOK}


def answering(said: object = "a", **choice: object) -> Callable[[dict], RawReply]:
    """A model server's reply whose only choice has this message, or its text."""
    message = {"role": "assistant", "content": said} if isinstance(said, str) else said
    answer = {"id": "c", "model": "echo", "choices": [{"index": 0, "message": message, **choice}]}
    return lambda request: RawReply(200, json.dumps(answer).encode())


class Held:
    """A model server's reply that waits until it is let go, and says when it was asked for."""

    def __init__(self) -> None:
        self._asked, self._let_go = threading.Event(), threading.Event()

    def __call__(self, request: dict) -> str:
        self._asked.set()
        self._let_go.wait()
        return "late"

    async def asked(self) -> None:
        await asyncio.to_thread(self._asked.wait)

    def let_go(self) -> None:
        self._let_go.set()


def models(url: str, *names: str, **more: object) -> list[dict]:
    """Entries of vLLM's at an address, of the name "echo" if no other is given."""
    params = [
        (name, {"model": f"hosted_vllm/{name}", "api_base": url}) for name in names or ("echo",)
    ]
    return [{"model_name": name, "litellm_params": given, **more} for name, given in params]


async def stream_of(url: str, body: dict) -> tuple[int, object, list[bytes]]:
    """Status, headers and pieces of an answer, as the gateway wrote them."""
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as response:
        # What arrives at once is still told apart by the chunks that the gateway wrote.
        pieces, piece = [], b""
        async for data, is_end in response.content.iter_chunks():
            piece += data
            if is_end and piece:
                pieces.append(piece)
                piece = b""
        return response.status, response.headers, [*pieces, piece] if piece else pieces


class Bench:
    """A proxy in front of a model server, an attempt that calls it, and the store behind it."""

    def __init__(self, proxy, llm: EchoLLM, store, rollout: AttemptedRollout) -> None:
        self.proxy, self.llm, self.store, self.rollout = proxy, llm, store, rollout

    @staticmethod
    def ask(content: str = "hello big world", **fields: object) -> dict:
        return {"model": "echo", "messages": [{"role": "user", "content": content}], **fields}

    def serve(self, *urls: str, **more: object) -> None:
        """From now on the model is at these addresses, and its entries say ``more``."""
        entries = [one for url in urls or (self.llm.url,) for one in models(url, **more)]
        self.proxy.update_model_list(entries)

    async def other(self, proxy: LLMProxy) -> "Bench":
        """Another proxy at the same store, with an attempt of its own."""
        return Bench(proxy, self.llm, self.store, await self.store.start_rollout(input="task"))

    @property
    def ids(self) -> tuple[str, str]:
        return self.rollout.rollout_id, self.rollout.attempt.attempt_id

    @property
    def url(self) -> str:
        return self.proxy.as_resource(model=self.proxy.model_names[0]).get_base_url(*self.ids)

    async def post(self, body, url=None, path="chat/completions", **headers):
        url = f"{url or self.url}/{path}"
        kind = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, headers=headers, **kind) as response,
        ):
            return response.status, await response.read()

    async def refused(self, body: object, *where: str, **more: str) -> tuple[int, dict]:
        """Status of the answer, and the error in it."""
        status, answer = await self.post(body, *where, **more)
        return status, json.loads(answer)["error"]

    async def leave(self) -> bytes:
        """Hang up after the first words of a stream; those."""
        body = self.ask(" ".join("word" for _ in range(40)), stream=True)
        url = f"{self.url}/chat/completions"
        async with aiohttp.ClientSession() as http, http.post(url, json=body) as response:
            return await response.content.readany()

    async def spans(self) -> list[Span]:
        await self.proxy.flush()
        return list(await self.store.query_spans(self.rollout.rollout_id))

    async def span(self) -> Span:
        """The only one; waits for it, as the end of a client that hangs up is noticed later."""
        while not (spans := await self.spans()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        (span,) = spans
        return span

    async def attributes(self) -> dict:
        return (await self.span()).attributes


@pytest.fixture
async def bench(memory_store, echo_llm):
    proxy = LLMProxy(open=True, model_list=models(echo_llm.url), store=memory_store)
    await proxy.start()
    yield Bench(proxy, echo_llm, memory_store, await memory_store.start_rollout(input="task"))
    await proxy.stop()


@pytest.fixture
async def started(bench):
    """Starts proxies beside the bench's, each with an attempt of its own, and stops them."""
    proxies = []

    async def start(**options):
        given = options if "replay" in options else {"model_list": models(bench.llm.url), **options}
        proxies.append(LLMProxy(**{"open": True, "store": bench.store, **given}))
        await proxies[-1].start()
        return await bench.other(proxies[-1])

    yield start
    for proxy in proxies:
        await proxy.stop()


@pytest.fixture
async def client(bench):
    import openai

    async with openai.AsyncOpenAI(base_url=bench.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def held(bench):
    """Let go before the servers end."""
    reply = Held()
    yield reply
    reply.let_go()
