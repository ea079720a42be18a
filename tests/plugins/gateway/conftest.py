import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from agl.store.memory import InMemoryLightningStore
from agl.types import AttemptedRollout, Span
from agl_gateway import LLMProxy
from agl_testing.echo_llm import EchoLLM


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


class Bench:
    """A proxy in front of a model server, an attempt that calls it, and the store behind it."""

    def __init__(
        self,
        proxy: LLMProxy,
        llm: EchoLLM,
        store: InMemoryLightningStore,
        rollout: AttemptedRollout,
    ) -> None:
        self.proxy, self.llm, self.store, self.rollout = proxy, llm, store, rollout

    @staticmethod
    def ask(content: str = "hello big world", **fields: object) -> dict:
        return {"model": "echo", "messages": [{"role": "user", "content": content}], **fields}

    @staticmethod
    def models(url: str, *names: str) -> list[dict]:
        return [
            {
                "model_name": name,
                "litellm_params": {"model": f"hosted_vllm/{name}", "api_base": url},
            }
            for name in names or ("echo",)
        ]

    async def other(self, proxy: LLMProxy, llm: EchoLLM | None = None) -> "Bench":
        """Another proxy at the same store, with an attempt of its own."""
        rollout = await self.store.start_rollout(input="task")
        return Bench(proxy, llm or self.llm, self.store, rollout)

    @property
    def url(self) -> str:
        resource = self.proxy.as_resource(model=self.proxy.model_names[0])
        return resource.get_base_url(self.rollout.rollout_id, self.rollout.attempt.attempt_id)

    async def post(
        self,
        body: object,
        url: str | None = None,
        path: str = "chat/completions",
        **headers: str,
    ) -> tuple[int, bytes]:
        url = f"{url or self.url}/{path}"
        kind = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, headers=headers, **kind) as response,
        ):
            return response.status, await response.read()

    async def spans(self) -> list[Span]:
        await self.proxy.flush()
        return list(await self.store.query_spans(self.rollout.rollout_id))

    async def span(self) -> Span:
        """The only one; waits for it, as the end of a client that hangs up is noticed later."""
        while True:
            spans = await self.spans()
            if spans:
                (span,) = spans
                return span
            await asyncio.sleep(0.005)


@pytest.fixture
async def bench(memory_store: InMemoryLightningStore, echo_llm: EchoLLM) -> AsyncIterator[Bench]:
    proxy = LLMProxy(open=True, model_list=Bench.models(echo_llm.url), store=memory_store)
    await proxy.start()
    rollout = await memory_store.start_rollout(input="task")
    yield Bench(proxy, echo_llm, memory_store, rollout)
    await proxy.stop()


@pytest.fixture
async def client(bench: Bench) -> AsyncIterator[object]:
    import openai

    async with openai.AsyncOpenAI(base_url=bench.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def held(bench: Bench) -> Iterator[Held]:
    """Let go before the servers end."""
    reply = Held()
    yield reply
    reply.let_go()
