"""Streams cut off by clients, backends that die: each call has one record, as it was."""

import asyncio
import json
import random

import aiohttp
import pytest

from agl.semconv import ModelCallAttributes as Key
from agl.store.memory import InMemoryLightningStore
from agl_gateway import LLMProxy

CHUNK = {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": "word "}}]}
LAST = {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
WHOLE = {
    "id": "c",
    "choices": [{"index": 0, "message": {"role": "assistant"}, "finish_reason": "stop"}],
}
ERRORS = {
    "whole": None,
    "stream": None,
    "cut": "client closed the connection",
    "die": "broke off its answer",
    "die stream": "broke off the stream",
}


def event(value: object) -> bytes:
    data = b"data: " + json.dumps(value).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


async def backend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that ends connections in the middle where the user's message says so."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            request = json.loads(await reader.readexactly(length))
            kind = request["messages"][0]["content"].split(":")[0]
            answer = json.dumps(WHOLE).encode()
            size = b"content-length: %d" % len(answer)
            if request.get("stream"):
                size, answer = b"transfer-encoding: chunked", b""
            content = b"text/event-stream" if request.get("stream") else b"application/json"
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: " + content + b"\r\n" + size)
            writer.write(b"\r\n\r\n" + (answer[:20] if kind == "die" else answer))
            if request.get("stream"):
                for number in range(6):
                    writer.write(event(CHUNK))
                    await asyncio.sleep(0)
                    while kind == "cut" and not reader.at_eof():  # until it is cut
                        writer.write(event(CHUNK))
                        await asyncio.sleep(0.02)
                    if kind == "die stream" and number == 3:
                        break
                if kind != "die stream":
                    done = b"data: [DONE]\n\n"
                    writer.write(event(LAST) + b"%x\r\n%b\r\n0\r\n\r\n" % (len(done), done))
            await writer.drain()
            if kind.startswith("die"):
                break
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


@pytest.mark.parametrize("seed", [1, 2])
async def test_each_of_many_failing_calls_has_one_record_with_the_right_status(
    memory_store: InMemoryLightningStore, seed: int
) -> None:
    server = await asyncio.start_server(backend, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    params = {"model": "hosted_vllm/m", "api_base": f"http://127.0.0.1:{port}/v1"}
    proxy = LLMProxy(
        open=True, model_list=[{"model_name": "m", "litellm_params": params}], store=memory_store
    )
    await proxy.start()
    rollouts = [await memory_store.start_rollout(input="task") for _ in range(4)]
    urls = [proxy.as_resource(r.rollout_id, r.attempt.attempt_id).endpoint for r in rollouts]
    planned = [kind for kind in ERRORS for _ in range(60)]
    random.Random(seed).shuffle(planned)
    gate = asyncio.Semaphore(32)

    async def call(session: aiohttp.ClientSession, number: int, kind: str) -> None:
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": f"{kind}:{number}"}],
            **({} if kind in ("whole", "die") else {"stream": True}),
        }
        url = f"{urls[number % len(urls)]}/chat/completions"
        async with gate, session.post(url, json=body) as response:
            if kind == "cut":
                await response.content.readany()
                response.close()
                return
            content = await response.read()
        assert response.status == (502 if kind == "die" else 200)
        assert (b'"error"' in content) == kind.startswith("die")
        assert (b"[DONE]" in content) == (kind == "stream")

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(call(session, *item) for item in enumerate(planned)))
    await proxy.stop()
    server.close()
    found: dict[int, list[tuple[str | None, str]]] = {}
    for rollout in rollouts:
        for span in await memory_store.query_spans(rollout.rollout_id):
            asked = json.loads(str(span.attributes[Key.INPUT_MESSAGES]))[0]["content"]
            seen = (span.attributes.get(Key.ERROR), span.status.status_code)
            found.setdefault(int(asked.split(":")[1]), []).append(seen)
    assert sorted(found) == list(range(len(planned)))
    for number, kind in enumerate(planned):
        ((error, status),) = found[number]
        expected = ERRORS[kind]
        assert status == ("ERROR" if expected else "OK")
        assert (expected or "None") in str(error)


async def test_times_versions_and_usage_are_in_the_record(bench) -> None:
    bench.llm.latency_seconds = 0.05
    await bench.post(bench.ask(stream=True, stream_options={"include_usage": True}))
    await bench.post(bench.ask())
    streamed, whole = (span.attributes for span in await bench.spans())
    assert streamed[Key.TIME_TO_FIRST_TOKEN] > 0.05
    assert streamed[Key.LATENCY] > streamed[Key.TIME_TO_FIRST_TOKEN] + 0.1
    assert Key.TIME_TO_FIRST_TOKEN not in whole
    assert whole[Key.LATENCY] > 0.05
    assert streamed[Key.OUTPUT_TOKENS] == whole[Key.OUTPUT_TOKENS] == 4


async def test_the_other_choices_have_token_ids_of_their_own(bench) -> None:
    for stream in (False, True):
        await bench.post(bench.ask(n=3, stream=stream))
    for span in await bench.spans():
        attributes = span.attributes
        for index in (1, 2):
            choice = f"{Key.CHOICE}.{index}"
            assert attributes[f"{choice}.token_ids"] == attributes[Key.RESPONSE_TOKEN_IDS]
            assert attributes[f"{choice}.logprobs"] == attributes[Key.RESPONSE_LOGPROBS]
        assert f"{Key.CHOICE}.3.token_ids" not in attributes


async def test_a_done_event_that_is_cut_in_two_still_ends_the_record_in_time(bench) -> None:
    from agl_gateway.dialect import Exchange
    from agl_gateway.forward import relay
    from agl_gateway.records import CallRecord, Origin
    from agl_gateway.wire import Reply

    stream = (
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    )

    class Answer:
        status, headers = 200, {"content-type": "text/event-stream"}

        def __init__(self, cut: int) -> None:
            self.pieces = (stream[:cut], stream[cut:])

        async def chunks(self):
            for piece in self.pieces:
                yield piece

    for cut in range(1, len(stream)):
        events: list[str] = []

        async def send(message: dict, events: list[str] = events) -> None:
            if b"[DONE]" in message.get("body", b""):
                events.append("sent")

        record = CallRecord(Origin("ro", "at"))
        exchange = Exchange(b"{}", {})
        exchange.body_for("m", ("return_token_ids",))
        await relay(
            Answer(cut), exchange, record, Reply(send), lambda _, e=events: e.append("end"), bytes
        )
        assert events == ["end", "sent"], cut
